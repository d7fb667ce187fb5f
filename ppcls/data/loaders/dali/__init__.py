"""The loader that NVIDIA DALI feeds."""
