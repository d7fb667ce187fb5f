"""Formulas of losses on tensors. Only this folder and ``layers.py`` import Paddle when they are imported.

Decisions:
- A formula casts its arguments to float32 and switches mixed precision off. Paddle would otherwise compute
  products in half precision, and float16 overflows in exponentials and squares.
- The result is a mean over images. It is not divided by a sum of class weights, so that the means of equal
  batches can be averaged over accumulated steps and ranks.
- A value that is subtracted for numerical reasons only, such as the largest logit, is detached. Its gradient
  is 0 in exact arithmetic, so that computing it only costs time.
"""
