"""Bullpen: a device-lab service that keeps test targets warm and hands them out."""

__version__ = "0.1.0"
