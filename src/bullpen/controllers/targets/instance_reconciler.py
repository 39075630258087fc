"""Creates the instance of every pool member, and removes it with the member.

A finalizer keeps a member's Exporter until its instance is gone, and an instance without an
Exporter is removed, so that neither outlives the other.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from bullpen.api.exporter import Exporter, ExporterStatusValue
from bullpen.api.objects import Objects
from bullpen.controllers.targets.blueprints import Blueprints
from bullpen.controllers.targets.instance_view import InstanceView, is_up
from bullpen.controllers.views import Views
from bullpen.core.conditions import get
from bullpen.core.exporters import presence
from bullpen.core.pools.members import REVISION, SINGLE_USE, Stage
from bullpen.core.targets.profiles import FINALIZER, PROVISIONER, Profile
from bullpen.errors import LabError, NotFound, Unavailable
from bullpen.kit.clock import Clock
from bullpen.provisioners.base import Provisioner
from bullpen.runtime.events import Events
from bullpen.runtime.informer import Key, key_of
from bullpen.runtime.loop import Outcome

WORKERS = 16
"""Members processed concurrently."""

HELD_RETRY = timedelta(seconds=5)
"""How often a backend without capacity is asked again, if it reports nothing before."""

UNKNOWN_RETRY = timedelta(seconds=1)
BURIAL_MAX = timedelta(minutes=10)
"""A deleted Exporter waits no longer than this for a backend that does not answer."""

SERVING = frozenset(
    {
        ExporterStatusValue.BEFORE_LEASE_HOOK,
        ExporterStatusValue.LEASE_READY,
        ExporterStatusValue.AFTER_LEASE_HOOK,
    }
)
"""Statuses of an exporter that knows of its lease. Any other one would exit if retired."""


class InstanceReconciler:
    """Reconciles the instance behind one exporter."""

    name = "instances"

    def __init__(
        self,
        objects: Objects,
        views: Views,
        instance_view: InstanceView,
        blueprints: Blueprints,
        *,
        clock: Clock,
        events: Events,
        chance: random.Random,
    ) -> None:
        self._objects = objects
        self._views = views
        self._instance_view = instance_view
        self._blueprints = blueprints
        self._clock = clock
        self._events = events
        self._chance = chance
        self._retired: set[str] = set()
        views.exporters.listen(self._changed)

    def _changed(self, old: Exporter | None, new: Exporter | None) -> None:
        if new is None and old is not None:
            self._instance_view.forget(old)
            self._retired.discard(old.metadata.uid)

    async def reconcile(self, key: Key) -> Outcome:
        found = self._views.exporters.get(*key)
        ours = found is not None and is_member(found) and self._instance_view.looks_after(found)
        member = found if ours else None
        await self._clear(key, member)
        if member is None:
            return Outcome()
        if member.metadata.deletion_timestamp is not None:
            return await self._bury(member)
        return await self._tend(member)

    async def _clear(self, key: Key, member: Exporter | None) -> None:
        """Remove the instance of another exporter of this name, or of none."""
        uid = member.metadata.uid if member is not None else ""
        for instance in self._instance_view.holders(key):
            if instance.owner_uid != uid:
                await self._instance_view.provisioners[instance.provisioner].remove(key)
                self._instance_view.drop(instance.provisioner, key)

    async def _bury(self, member: Exporter) -> Outcome:
        """Remove the instance, then remove the Exporter's finalizer."""
        if FINALIZER not in member.metadata.finalizers:
            return Outcome()
        problem = await self._remove(member)
        if problem:
            text = f"its instance may still exist: {problem}"
            self._events.emit(member, reason="InstanceLeft", message=text, warning=True)
        kept = tuple(name for name in member.metadata.finalizers if name != FINALIZER)
        try:
            await self._objects.update(
                replace(member, metadata=replace(member.metadata, finalizers=kept))
            )
        except NotFound:
            return Outcome()
        return Outcome()

    async def _remove(self, member: Exporter) -> str:
        """Remove the instance; returns the error that prevented it, or an empty string."""
        provisioner = self._instance_view.provisioner_of(member)
        if provisioner is None:
            return (
                f"provisioner {member.metadata.annotations.get(PROVISIONER)} is not available here"
            )
        key = key_of(member)
        try:
            await provisioner.remove(key)
        except Unavailable as error:
            begun = member.metadata.deletion_timestamp
            assert begun is not None
            if self._clock.now() - begun < BURIAL_MAX:
                raise
            return error.message
        self._instance_view.drop(provisioner.name, key)
        return ""

    async def _tend(self, member: Exporter) -> Outcome:
        provisioner = self._instance_view.provisioner_of(member)
        if provisioner is None:
            return Outcome()
        if not self._instance_view.is_known(provisioner.name):
            return Outcome(wake_at=self._clock.now() + UNKNOWN_RETRY)
        instance = self._instance_view.instance(member)
        if instance is None:
            return await self._start(member, provisioner)
        if is_up(instance) and _serves_its_last(member):
            await self._retire(member, provisioner)
        return Outcome()

    async def _start(self, member: Exporter, provisioner: Provisioner) -> Outcome:
        made, token = self._profile(member), self._blueprints.token(member)
        if made is None or not token or not member.status.endpoint or not self._may_start(member):
            return Outcome()
        spec = self._blueprints.spec(member, made, token)
        self._instance_view.asked(member, token)
        try:
            self._instance_view.put(await provisioner.ensure(spec))
        except Unavailable as error:
            self._instance_view.deny(member, Stage.HELD, reason=error.reason, detail=error.message)
            wait = HELD_RETRY * (0.5 + self._chance.random())
            return Outcome(wake_at=self._clock.now() + wait)
        except LabError as error:
            self._instance_view.deny(
                member, Stage.REFUSED, reason=error.reason, detail=error.message
            )
        return Outcome()

    def _profile(self, member: Exporter) -> Profile | None:
        """The profile the member is created from; None if it is invalid or of another revision."""
        owner = self._blueprints.owner(member)
        blueprint = self._blueprints.of(owner) if owner is not None else None
        if blueprint is None or blueprint.profile is None or blueprint.problem is not None:
            return None
        current = member.metadata.labels.get(REVISION) == blueprint.profile.revision
        return blueprint.profile if current else None

    def _may_start(self, member: Exporter) -> bool:
        """An instance that existed once is not created again: its member is replaced."""
        begun = get(member.status.conditions, "Registered") is not None
        refused = self._instance_view.backing(member).stage is Stage.REFUSED
        return member.spec.enabled and not begun and not refused

    async def _retire(self, member: Exporter, provisioner: Provisioner) -> None:
        uid = member.metadata.uid
        if uid not in self._retired:
            await provisioner.retire(key_of(member))
            self._retired.add(uid)


def is_member(exporter: Exporter) -> bool:
    """Whether a pool of ours created the exporter, and so its instance."""
    return PROVISIONER in exporter.metadata.annotations


def watch_members(views: Views, instance_view: InstanceView, add: Callable[[Key], None]) -> None:
    """Start a pass whenever a member or its instance changes in a relevant way."""

    def exporter(old: Exporter | None, new: Exporter | None) -> None:
        value = new or old
        assert value is not None
        if is_member(value) and (old is None or new is None or _facts(old) != _facts(new)):
            add(key_of(value))

    views.exporters.listen(exporter)
    instance_view.listen(add)


def _facts(exporter: Exporter) -> tuple[object, ...]:
    status, meta = exporter.status, exporter.metadata
    return (
        meta.deletion_timestamp,
        meta.finalizers,
        meta.labels.get(REVISION),
        exporter.spec.enabled,
        status.credential,
        status.endpoint,
        _serves_its_last(exporter),
    )


def _serves_its_last(exporter: Exporter) -> bool:
    leased = exporter.status.lease_ref is not None and presence.online(exporter)
    serving = exporter.status.exporter_status in SERVING
    return SINGLE_USE in exporter.metadata.annotations and leased and serving
