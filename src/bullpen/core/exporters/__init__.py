"""Exporters: whether they are online, what they offer, and what they are told."""
