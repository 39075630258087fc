"""The base of the controllers: cached views, a work queue, a reconcile loop, events.

Domain-free: nothing here knows what a lease is.
"""
