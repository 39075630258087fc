"""Leases: assigned, ended, repaired and deleted here."""
