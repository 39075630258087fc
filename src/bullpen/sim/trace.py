"""The events of a run, one line each, and a digest by which two runs are compared.

Commits and logged bugs get here too; the former also reach the history.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections import deque
from collections.abc import Callable, Iterator

from bullpen.sim.history import History
from bullpen.sim.truth import Fact

TAIL_MAX = 4_000
"""Lines that are kept; the digest is over all of them."""


class Trace:
    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._digest = hashlib.sha256()
        self._tail: deque[str] = deque(maxlen=TAIL_MAX)
        self.count = 0

    def say(self, who: str, what: str) -> None:
        line = f"{self._time():10.3f} {who:<14} {what}"
        self._digest.update(line.encode())
        self._tail.append(line)
        self.count += 1

    @property
    def tail(self) -> tuple[str, ...]:
        return tuple(self._tail)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()[:16]


KINDS = ("Lease", "Exporter", "ExporterSet", "VirtualTarget", "VirtualTargetPool", "VirtualDisk")
"""The kinds whose changes are in the trace."""


class CommitRecorder:
    """Reports commits to the history and the trace."""

    promise = ""

    def __init__(self, history: History, say: Callable[[str, str], None]) -> None:
        self._history = history
        self._say = say

    def see(self, fact: Fact) -> tuple[str, ...]:
        if fact.kind == "Lease" and "clientRef" in fact.last["spec"]:
            self._history.committed(fact)
        if fact.kind in KINDS:
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
    if fact.kind == "VirtualTarget":
        ending = "deletionTimestamp" in fact.new["metadata"]
        return f"{said.get('phase', '-')} disks={said.get('disks', [])} ending={ending}"
    if fact.kind == "VirtualDisk":
        return f"{said.get('phase', '-')} attached={said.get('attachedTo', '-')}"
    count = spec.get("maxReplicas", spec.get("replicas"))
    leaving = f" removals={len(spec['removals'])}" if spec.get("removals") else ""
    return f"max={count} replicas={said.get('replicas', 0)}{leaving}"


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
