"""Jumpstarter drivers of our own, usable with the published clients and with ``jmp run``."""
