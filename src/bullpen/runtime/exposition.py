"""Metrics as Prometheus reads them: its own text format, or OpenMetrics with exemplars."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder


def exposition(collectors: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """The body and its content type, in the format that the ``Accept`` header asks for."""
    encode, content_type = choose_encoder(accept)
    return encode(collectors), content_type
