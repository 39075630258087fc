"""Runs workloads as Pods of a cluster."""
