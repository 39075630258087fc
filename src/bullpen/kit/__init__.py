"""Small things everything else stands on: time, chance, names, selectors, units.

Nothing here knows what a lab is, and nothing here does I/O.
"""
