"""Bad images: search, lists and quarantine."""
