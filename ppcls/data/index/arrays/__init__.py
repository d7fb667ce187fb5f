"""Lists of millions of images as arrays: parsed in pieces, and cached for all processes of a machine."""
