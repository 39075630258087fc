"""The trace of a lease: spans from its request to the first byte from its target. Pure.

Each process reports the spans that it sees. Their trace and the id of the span above them
follow from the uid of the lease, so that spans of controller and router belong together
without anything being passed between the processes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

IDS = 2**64
"""The number of ids of spans, and of values of the half of a trace's id that is sampled by."""

UID = re.compile(r"[0-9a-f]{32}")


class Step(StrEnum):
    """The name of a span."""

    LEASE = "lease"
    """From the request until the client may connect; the others are below it."""

    CREATE = "CreateLease"
    WAIT = "wait for a target"
    DIAL = "Dial"
    FIRST_BYTE = "first byte"
    """From the joining of client and exporter to the first byte from the exporter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    lease: str
    """The uid of the lease."""

    step: Step
    start: datetime
    end: datetime
    attributes: Mapping[str, str] = field(default_factory=dict)


def trace_id(lease: str) -> int:
    """The id of the trace of the lease with this uid: the uid itself, as a number."""
    digits = lease.replace("-", "")
    if UID.fullmatch(digits):
        return int(digits, 16)
    return int.from_bytes(_digest(lease, ""), "big")


def span_id(span: Span) -> int:
    """Of the span for the whole lease, what the others name as their parent; else its own."""
    return _id(span.lease, "" if span.step is Step.LEASE else f"{span.step}/{span.start}")


def parent_id(span: Span) -> int | None:
    """The span above; None for that of the whole lease."""
    return None if span.step is Step.LEASE else _id(span.lease, "")


def sampled(lease: str, ratio: float) -> bool:
    """Whether the lease is traced: decided by its trace id, so by all processes alike."""
    return trace_id(lease) % IDS < ratio * IDS


def _id(lease: str, what: str) -> int:
    found = int.from_bytes(_digest(lease, what)[:8], "big")
    # Zero is no id.
    return found or 1


def _digest(lease: str, what: str) -> bytes:
    return hashlib.sha256(f"{lease}/{what}".encode()).digest()[:16]
