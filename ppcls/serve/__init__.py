"""HTTP server for models: receives images, and returns their classes or embeddings."""
