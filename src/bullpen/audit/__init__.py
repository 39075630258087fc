"""The audit log: who changed what, who was refused what, in Kubernetes' audit.k8s.io/v1 form."""
