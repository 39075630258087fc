"""Pools: how large they should be, which members change, and what they say of themselves."""
