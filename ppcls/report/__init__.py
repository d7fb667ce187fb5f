"""How a run tells what it does: on the console, in files, in pictures."""
