"""Memory, kernels and CUDA graphs that make predictions on a GPU fast."""
