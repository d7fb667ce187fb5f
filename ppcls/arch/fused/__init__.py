"""Faster layers for NHWC images on GPUs, by cuDNN's own layout and kernels compiled at run time."""
