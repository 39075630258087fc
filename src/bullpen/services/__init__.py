"""Jumpstarter's behaviour, without gRPC: callers, leases, exporters, dialling.

``services.grpc`` translates it to and from the wire.
"""
