"""The larger subcommands of ``ppcls dataset``."""
