"""Non-finite steps; requests to stop or save."""
