"""Containers of many images, one file a format: how shards are written, indexed and read at random."""
