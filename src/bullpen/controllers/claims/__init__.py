"""Controllers of claims for several exporters at once."""
