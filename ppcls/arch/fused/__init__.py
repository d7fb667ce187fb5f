"""Faster layers for NHWC images on GPUs, which use cuDNN directly and CUDA kernels compiled at run time."""
