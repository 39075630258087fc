"""What controllers stand on: cached views, a work queue, a reconcile loop, events.

Domain-free: nothing here knows what a lease is.
"""
