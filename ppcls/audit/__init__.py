"""Finds problems of labelled pictures: duplicates, suspicious labels, outliers, small classes and bursts."""
