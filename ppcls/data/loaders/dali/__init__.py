"""The loader on NVIDIA DALI."""
