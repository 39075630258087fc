"""Revisioned keys and bytes, durable on acknowledgement.

The store knows nothing of Kubernetes: keys are text, values are bytes, and
every change has one revision. ``base`` is the contract; ``sqlite`` and
``memory`` fulfil it; ``tests/contract/test_store.py`` holds both to it.
"""
