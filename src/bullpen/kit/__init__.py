"""Basics that all other packages use: time, randomness, names, selectors, units.

Nothing here knows what a lab is, and nothing here does I/O.
"""
