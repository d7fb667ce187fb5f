"""The parser of command lines, hints for options of other tools, and the keys that training options set."""
