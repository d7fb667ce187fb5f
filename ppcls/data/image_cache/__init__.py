"""A cache of decoded images for all processes of a machine: ``DataLoader.Train.cache``."""
