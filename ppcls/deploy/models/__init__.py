"""Models for inference: their sources, their descriptions and the engines that run them."""
