"""ppcls: train PaddlePaddle image classifiers from one YAML, fed by NVIDIA DALI."""

__version__ = "0.1.0"
