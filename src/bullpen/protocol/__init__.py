"""Bullpen's own gRPC service for claims: ``claims.proto`` and the code generated from it."""
