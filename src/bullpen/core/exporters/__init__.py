"""Exporters: whether they are there, what they offer, and what they are told."""
