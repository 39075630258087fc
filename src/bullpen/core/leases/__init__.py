"""Leases: who gets which exporter, for how long, and what a lease says of itself."""
