"""Reports on an object that it could not be processed: by condition, if any, and by Event.

``runtime.faults`` collects the failures of listeners and passes. This controller writes
them to the objects, so that ``kubectl describe`` and ``bullpen status`` show which object
is faulty.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta

from bullpen.api.fields import Kind
from bullpen.api.kinds.client import Client
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.exporterset import ExporterSet
from bullpen.api.kinds.lease import Lease
from bullpen.api.objects import Objects, meta_of
from bullpen.core import conditions
from bullpen.errors import NotFound
from bullpen.kit.clock import Clock
from bullpen.runtime.events import Events
from bullpen.runtime.faults import Fault, Faults, ObjectKey
from bullpen.runtime.loop import Outcome

PROCESSED = "Processed"
"""False while Bullpen cannot process an object. Absent on objects that never had a fault."""

REASON = "InternalError"

LOOK_AGAIN = timedelta(seconds=1)
"""How long an unreadable object may take to appear; a commit takes milliseconds."""

_WITH_CONDITIONS = (Client, Exporter, ExporterSet, Lease)


class FaultReconciler:
    """Reconciles the fault condition of one object."""

    name = "faults"

    def __init__(
        self,
        objects: Objects,
        faults: Faults,
        *,
        clock: Clock,
        events: Events,
        kinds: tuple[type[Kind], ...] | None = None,
    ) -> None:
        """``kinds`` are those this process may read and write; None for all.

        Faults of other kinds are only logged and counted.
        """
        self._objects = objects
        self._faults = faults
        self._clock = clock
        self._kinds = kinds
        self._events = events
        self._missed: set[ObjectKey] = set()
        """Objects that could not be read in the last pass."""

    async def reconcile(self, key: ObjectKey) -> Outcome:
        if self._kinds is not None and key.kind not in self._kinds:
            return Outcome()
        try:
            value = await self._objects.get(key.kind, key.namespace, key.name)
        except NotFound:
            return self._absent(key)
        self._missed.discard(key)
        uid = meta_of(value).uid
        found = tuple(fault for fault in self._faults.of(key) if fault.uid == uid)
        if found:
            self._events.emit(value, reason=REASON, message=_message(found), warning=True)
        if isinstance(value, _WITH_CONDITIONS):
            await self._mark(value, found)
        return Outcome()

    def _absent(self, key: ObjectKey) -> Outcome:
        """A pass may fail on an object whose creation is not yet durable."""
        if key in self._missed or not self._faults.of(key):
            self._missed.discard(key)
            self._faults.drop(key)
            return Outcome()
        self._missed.add(key)
        return Outcome(wake_at=self._clock.now() + LOOK_AGAIN)

    async def _mark(
        self, value: Client | Exporter | ExporterSet | Lease, found: tuple[Fault, ...]
    ) -> None:
        before = value.status.conditions
        if not found and conditions.get(before, PROCESSED) is None:
            return
        after = conditions.condition(
            before,
            PROCESSED,
            status=not found,
            reason=REASON if found else "Recovered",
            message=_message(found),
            generation=value.metadata.generation,
            now=self._clock.now(),
        )
        if isinstance(value, Lease):
            # Jumpstarter's client reads the last condition of a lease.
            after = conditions.last(after, before[-1].type) if before else after
        if after != before:
            status = replace(value.status, conditions=after)
            await self._objects.update_status(replace(value, status=status))  # type: ignore[arg-type]


def unprocessed(faults: Faults) -> Counter[str]:
    """How many objects of each kind have a fault now."""
    return Counter(key.kind.kind for key in faults.all())


def _message(found: tuple[Fault, ...]) -> str:
    if not found:
        return ""
    said = "; ".join(f"{fault.part}: {fault.error}" for fault in found)
    return (
        f"Bullpen cannot process this object ({said}). Change or delete it, and report the"
        " traceback in the service's log"
    )
