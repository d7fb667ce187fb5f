"""Preprocessing of images as layers of a network."""
