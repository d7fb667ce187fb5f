"""Data sets in object storage: their names, copies on the local disk, and reading ahead."""
