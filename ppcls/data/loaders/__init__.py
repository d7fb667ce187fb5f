"""Implements data loaders, all with the interface `ppcls.data.loaders.batch.Loader`."""
