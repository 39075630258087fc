"""Kubernetes RBAC in the embedded home: aggregated ClusterRoles."""
