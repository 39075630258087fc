"""The decisions: who may, who is next, who gets what, when it ends.

Pure, synchronous and total. Nothing here awaits, reads a clock, or draws a
random number; what surrounds it observes, asks, and acts.
"""
