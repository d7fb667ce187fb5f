"""Field types and error texts that all sections share."""
