"""Layers that several families share.

The arguments ``in_channels``, ``out_channels``, ``kernel``, ``stride``, ``groups`` and ``data_format`` have
the same meaning as in `nn.Conv2D`. The docstrings do not describe them again.
"""
