"""Export of trained models, and prediction with trained or exported models."""
