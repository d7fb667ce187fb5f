"""Field types and error messages that all sections share."""
