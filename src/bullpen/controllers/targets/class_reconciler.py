"""Reports on every class whether its targets run in a sandbox on this host, or why not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from bullpen.api.kinds.virtualtargetclass import VirtualTargetClass, VirtualTargetClassStatus
from bullpen.api.objects import Objects
from bullpen.controllers.object_edit import change_status
from bullpen.core import conditions
from bullpen.errors import NotFound
from bullpen.kit.clock import Clock
from bullpen.placements.local.confinement import Sandboxing
from bullpen.runtime.informer import Informer, Key, key_of
from bullpen.runtime.loop import Outcome

SANDBOXED = "Sandboxed"


class ClassReconciler:
    """Reconciles the condition of one class."""

    name = "classes"

    def __init__(
        self,
        objects: Objects,
        classes: Informer[VirtualTargetClass],
        *,
        sandboxing: Mapping[str, Sandboxing],
        clock: Clock,
    ) -> None:
        """``sandboxing``: the sandbox that each provisioner of this process provides."""
        self._objects = objects
        self._classes = classes
        self._sandboxing = sandboxing
        self._clock = clock

    async def reconcile(self, key: Key) -> Outcome:
        value = self._classes.get(*key)
        if value is None or value.spec.provisioner not in self._sandboxing:
            return Outcome()
        # The class may have been deleted during the pass.
        try:
            await change_status(self._objects, self._classes, value, self._status)
        except NotFound:
            return Outcome()
        return Outcome()

    def _status(self, value: VirtualTargetClass) -> VirtualTargetClassStatus:
        found = self._sandboxing[value.spec.provisioner]
        return replace(
            value.status,
            conditions=conditions.condition(
                value.status.conditions,
                SANDBOXED,
                status=found.complete,
                reason=found.reason,
                message=found.message,
                generation=value.metadata.generation,
                now=self._clock.now(),
            ),
        )


def watch_classes(classes: Informer[VirtualTargetClass], add: Callable[[Key], None]) -> None:
    """Start a pass for a class that is new or was changed."""

    def changed(old: VirtualTargetClass | None, new: VirtualTargetClass | None) -> None:
        if new is not None and (old is None or old.spec != new.spec):
            add(key_of(new))

    classes.listen(changed)
