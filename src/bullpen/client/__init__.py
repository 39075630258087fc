"""A small client of the service: leases an exporter and connects to it, with few imports."""
