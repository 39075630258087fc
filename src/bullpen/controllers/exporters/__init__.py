"""Exporters: their presence and their credentials."""
