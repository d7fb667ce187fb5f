"""PyTorch training the same model at the same sizes: only `tools/benchmark.py train --torch` needs it."""
