"""Wall-clock time of whole training runs."""
