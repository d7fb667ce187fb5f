"""Blocks of several layers with kernels of their own."""
