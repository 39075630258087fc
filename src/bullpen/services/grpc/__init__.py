"""Jumpstarter's gRPC services: messages to values and back, errors to codes.

Nothing here decides. The compiled protocol is the published one.
"""
