"""The audit log: changes and refusals, in Kubernetes' audit.k8s.io/v1 form."""
