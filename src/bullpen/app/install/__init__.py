"""What to install in a cluster, as documents: the one source of plain manifests and the chart."""
