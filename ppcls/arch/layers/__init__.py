"""Layers that several families share.

``in_channels``, ``out_channels``, ``kernel``, ``stride``, ``groups`` and ``data_format`` have their usual
meaning.
"""
