"""Formulas of losses on tensors. Only this folder and ``layers.py`` import Paddle when they are imported."""
