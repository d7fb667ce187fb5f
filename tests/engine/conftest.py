"""The fixtures of `small_config`, for the tests of this folder."""

from small_config import cpu, images, make_config, make_yaml

__all__ = ["cpu", "images", "make_config", "make_yaml"]
