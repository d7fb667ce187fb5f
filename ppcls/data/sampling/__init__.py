"""Which samples come in which order, in which size."""
