"""Leases: which client gets which exporter, for how long, and what the lease status says."""
