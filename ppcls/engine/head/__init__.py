"""Fits a linear head on the features of frozen weights, instead of training by gradient descent."""
