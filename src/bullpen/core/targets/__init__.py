"""Targets: what an instance is made from."""
