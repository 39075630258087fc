"""What to install in a cluster, as documents: the single source of manifests and chart."""
