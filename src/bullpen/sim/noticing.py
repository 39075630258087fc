"""The inputs of a run's checks: commits for its history and trace, and logged bugs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

from bullpen.sim.history import History
from bullpen.sim.truth import Fact


class Noticing:
    """Reports commits to the history and the trace."""

    promise = ""

    def __init__(self, history: History, say: Callable[[str, str], None]) -> None:
        self._history = history
        self._say = say

    def see(self, fact: Fact) -> tuple[str, ...]:
        if fact.kind == "Lease" and "clientRef" in fact.last["spec"]:
            self._history.committed(fact)
        if fact.kind in ("Lease", "Exporter", "ExporterSet"):
            self._say("commit", f"{fact.revision} {fact.kind} {fact.name} {_digest(fact)}")
        return ()


def _digest(fact: Fact) -> str:
    """The part of a change that shows what happened."""
    if fact.new is None:
        return "deleted"
    spec, said = fact.new.get("spec") or {}, fact.new.get("status") or {}
    if fact.kind == "Lease":
        ref = (said.get("exporterRef") or {}).get("name", "-")
        return f"{ref} epoch={said.get('epoch', 0)} ended={said.get('ended', False)}"
    if fact.kind == "Exporter":
        ref = (said.get("leaseRef") or {}).get("name", "-")
        online = next(
            (c["status"] for c in said.get("conditions", ()) if c["type"] == "Online"), "-"
        )
        return (
            f"lease={ref} epoch={said.get('leaseEpoch', 0)} online={online}"
            f" says={said.get('exporterStatus', '-')} enabled={spec.get('enabled', True)}"
        )
    return f"max={spec.get('maxReplicas')} replicas={said.get('replicas', 0)}"


@contextlib.contextmanager
def listening_to_logs(tell: Callable[[logging.LogRecord], None]) -> Iterator[None]:
    """Receive log records with a traceback; nothing is printed meanwhile."""
    handler = _BugHandler(tell)
    logger = logging.getLogger("bullpen")
    propagate = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


class _BugHandler(logging.Handler):
    def __init__(self, tell: Callable[[logging.LogRecord], None]) -> None:
        super().__init__(logging.ERROR)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self._tell(record)
