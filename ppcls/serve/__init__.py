"""HTTP server for a model: receives images and returns their classes or embeddings."""
