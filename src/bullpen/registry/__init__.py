"""Kubernetes object semantics over a store.

``Registry`` is the way in: it turns requests about objects into one durable
change each. What a write means (defaults, ownership of fields, patches, what
garbage is) is decided by the pure modules beside it; only ``registry``,
``watching``, ``garbage`` and ``expiry`` touch the store. Nothing here knows HTTP.
"""
