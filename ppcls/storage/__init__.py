"""Runs and models in object storage, which local folders mirror."""
