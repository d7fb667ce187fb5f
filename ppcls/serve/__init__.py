"""A small HTTP server: pictures in, their classes out."""
