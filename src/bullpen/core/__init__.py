"""The decisions: access, scheduling order, assignment, expiry, pool sizes.

Pure, synchronous and total. Nothing here awaits, reads a clock, or draws a random number;
the callers observe the state, ask for a decision, and act on it.
"""
