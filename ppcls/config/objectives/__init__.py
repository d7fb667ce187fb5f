"""Config sections for distillation, embeddings, and images with several labels."""
