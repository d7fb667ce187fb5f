"""Speed of HTTP servers under load."""
