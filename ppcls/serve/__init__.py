"""A small HTTP server: pictures in, their classes or embeddings out."""
