"""Pools: how large they should be, which members change, and what their status says."""
