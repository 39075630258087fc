"""Kubernetes object semantics over a store.

``Registry`` is the entry point: it turns each request about an object into one durable
change. The pure modules beside it decide what a write means (defaults, field ownership,
patches, garbage); only ``registry``, ``watching``, ``garbage`` and ``expiry`` touch the
store. Nothing here knows HTTP.
"""
