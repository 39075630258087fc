"""The client interface over HTTP: a Kubernetes API server, or our own from another process."""
