"""Jumpstarter's behaviour, without gRPC: who calls, leases, exporters, dialling.

``services.grpc`` translates it to and from the wire.
"""
