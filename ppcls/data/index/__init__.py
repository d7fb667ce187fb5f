"""Reads the lists of samples and the labels of datasets."""
