"""Loads images with NVIDIA DALI."""
