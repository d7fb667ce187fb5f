"""Non-finite losses and gradients, and requests to save or stop."""
