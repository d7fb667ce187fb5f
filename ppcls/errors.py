"""The error that is meant for the user, not for a developer."""


class UserError(Exception):
    """An error whose text is all that the user needs: entry points print it without a traceback."""
