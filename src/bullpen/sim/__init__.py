"""The whole lab in one thread under virtual time, with everything that can go wrong, from a seed.

The controllers, services, registry and core are the ones of production; machines, disks,
networks, clients and exporters are played. Nothing in production imports this.
"""
