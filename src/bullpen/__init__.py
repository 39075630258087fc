"""Bullpen: a device-lab service that keeps test targets warm and hands them out."""

try:
    # Written by the build, from the newest tag.
    from bullpen._version import __version__
except ImportError:
    __version__ = "0.1.0"

__all__ = ["__version__"]
