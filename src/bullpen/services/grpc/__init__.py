"""Jumpstarter's gRPC services: converts messages to values and back, and errors to codes.

Nothing here decides. The compiled protocol is the published one.
"""
