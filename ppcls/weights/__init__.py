"""Weight files: reading, writing, verification."""
