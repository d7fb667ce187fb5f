"""Commands that show the results of finished runs."""
