"""Targets: the inputs an instance is created from."""
