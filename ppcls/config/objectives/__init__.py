"""Config of training objectives: distillation, embedding, several labels."""
