"""The whole lab in one thread under virtual time, with injected faults, from a seed.

The controllers, services, registry and core are those of production; machines, disks,
networks, clients and exporters are simulated. Nothing in production imports this.
"""
