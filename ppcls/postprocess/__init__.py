"""Converts the outputs of a model into predictions, such as the classes with the highest scores."""
