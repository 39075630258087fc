"""Targets: the instances behind the members of pools."""
