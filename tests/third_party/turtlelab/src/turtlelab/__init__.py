"""Turtles as test targets."""
