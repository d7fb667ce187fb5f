"""What the fused kernels of all devices share."""
