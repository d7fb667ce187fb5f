"""Determines the order of samples, their distribution over ranks, and the input size of each step."""
