"""Which samples there are, with their labels."""
