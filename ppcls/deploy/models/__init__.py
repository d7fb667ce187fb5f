"""Finding and running a trained or exported model."""
