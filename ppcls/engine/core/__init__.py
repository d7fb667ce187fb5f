"""The training step, and the state, precision and gradients that it uses."""
