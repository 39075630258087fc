"""Kubernetes RBAC: whether a user may do what is asked, and what may be granted."""
