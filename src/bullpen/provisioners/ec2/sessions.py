"""Sessions of AWS that are limited to one instance, for its exporter. Pure."""

from __future__ import annotations

from typing import Any

ACTIONS = (
    "ec2:StartInstances",
    "ec2:StopInstances",
    "ec2:GetConsoleOutput",
)
"""What a session may do with its instance. Listings cannot be limited to one, so it has none."""

PARTITIONS = {"cn-": ("aws-cn", "amazonaws.com.cn"), "us-gov-": ("aws-us-gov", "amazonaws.com")}
"""Regions by their beginning: the partition in names of resources, and the domain."""


def session_policy(region: str, instance: str) -> dict[str, Any]:
    resource = f"arn:{_partition(region)[0]}:ec2:{region}:*:instance/{instance}"
    statement = {"Effect": "Allow", "Action": list(ACTIONS), "Resource": resource}
    return {"Version": "2012-10-17", "Statement": [statement]}


def endpoint(region: str) -> str:
    return f"https://ec2.{region}.{_partition(region)[1]}/"


def _partition(region: str) -> tuple[str, str]:
    found = (names for start, names in PARTITIONS.items() if region.startswith(start))
    return next(found, ("aws", "amazonaws.com"))
