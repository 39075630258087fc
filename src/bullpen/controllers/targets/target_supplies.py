"""Lasting targets that are about to be available, as far as waiting leases are concerned.

A lease that only a starting or restarting target satisfies waits for it. Reads the status
of targets; decides nothing and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from bullpen.api.kinds.virtualtarget import TargetPhase, VirtualTarget
from bullpen.controllers.views import Views
from bullpen.core import conditions
from bullpen.core.leases.requests import Supply
from bullpen.core.matcher import Device
from bullpen.core.targets import disks

_COMING = frozenset({TargetPhase.PENDING, TargetPhase.STARTING, TargetPhase.STOPPING})


class TargetSupplies:
    def __init__(self, views: Views, *, supply_changed: Callable[[str], None]) -> None:
        self._supply_changed = supply_changed
        self.coming: dict[str, dict[str, Supply]] = {}
        """By namespace and name: few at a time, however many targets there are."""

        views[VirtualTarget].listen(self._changed)

    def _changed(self, old: VirtualTarget | None, new: VirtualTarget | None) -> None:
        target = new or old
        assert target is not None
        namespace, name = target.metadata.namespace, target.metadata.name
        found = self.coming.setdefault(namespace, {})
        supply = _supply(new)
        if found.get(name) == supply:
            return
        if supply is None:
            del found[name]
        else:
            found[name] = supply
        self._supply_changed(namespace)


def _supply(target: VirtualTarget | None) -> Supply | None:
    if target is None or target.metadata.deletion_timestamp is not None:
        return None
    # A target that is told to restart is in service until its machine stops.
    restarting = conditions.holds(target.status.conditions, "RestartRequired")
    full = disks.without_space(target)
    if not target.spec.running or not (target.status.phase in _COMING or restarting or full):
        return None
    name = target.metadata.name
    state = "paused: its host has no space" if full else target.status.phase.lower()
    return Supply(
        name=name,
        member=Device(labels=target.metadata.labels),
        message=f"target {name} is {state}",
    )
