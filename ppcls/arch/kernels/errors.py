"""The error of libraries that the fused kernels need."""

from __future__ import annotations


class KernelsUnavailableError(RuntimeError):
    """Raised when this machine lacks a library of the fused kernels, or one of its calls fails."""
