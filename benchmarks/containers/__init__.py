"""Reading from containers and from image files."""
