"""Keeps every VirtualTarget as it should be: its Exporter, its machine and its status.

What is about to be done is written to the status first, so that a service that is killed in
between finds it there. An Exporter that is being deleted, and its machine, are removed by
``instance_reconciler``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import assert_never

from bullpen.api.kinds.exporter import Exporter, ExporterSpec
from bullpen.api.kinds.virtualdisk import VirtualDisk
from bullpen.api.kinds.virtualtarget import VirtualTarget
from bullpen.api.meta import ObjectMeta, OwnerReference
from bullpen.api.objects import Objects
from bullpen.controllers.object_edit import change
from bullpen.controllers.targets.blueprints import Blueprints
from bullpen.controllers.targets.disk_users import DiskUsers
from bullpen.controllers.targets.instance_view import InstanceView
from bullpen.controllers.views import Views
from bullpen.core.pools.members import Stage
from bullpen.core.targets import (
    disks,
    lasting_targets,
    profiles,
    target_exporter,
    target_status,
)
from bullpen.core.targets.instances import UNLISTED_RETRY
from bullpen.core.targets.lasting_targets import (
    ChangeDisks,
    EditExporter,
    MakeExporter,
    Protect,
    Release,
    Remove,
    RemoveExporter,
    Start,
    Stop,
    TargetView,
    Verdict,
)
from bullpen.errors import AlreadyExists, Conflict, LabError, NotFound, Unavailable
from bullpen.kit.clock import Clock
from bullpen.runtime.events import Events
from bullpen.runtime.informer import Key, key_of
from bullpen.runtime.loop import Outcome

WORKERS = 16
"""Targets processed concurrently: starting and stopping waits for backends."""


class TargetReconciler:
    """Reconciles one VirtualTarget."""

    name = "virtualtargets"

    def __init__(
        self,
        objects: Objects,
        views: Views,
        instance_view: InstanceView,
        blueprints: Blueprints,
        users: DiskUsers,
        *,
        clock: Clock,
        events: Events,
    ) -> None:
        self._objects = objects
        self._views = views
        self._targets = views[VirtualTarget]
        self._disks = views[VirtualDisk]
        self._instance_view = instance_view
        self._blueprints = blueprints
        self._users = users
        self._changes: dict[Key, tuple[str, str]] = {}
        """The last change of disks of each running machine, and why it refused it."""

        self._starts: dict[Key, tuple[str, int, int]] = {}
        """The uid and the last start known of each target, and how many lists of its provisioner
        had begun before that start was seen here; a start of our own needs no list."""

        self._clock = clock
        self._events = events

    async def reconcile(self, key: Key) -> Outcome:
        target = self._targets.get(*key)
        if target is None:
            self._changes.pop(key, None)
            self._starts.pop(key, None)
            return Outcome()
        now = self._clock.now()
        seen = self._observe(target)
        verdict = lasting_targets.decide(seen, now=now)
        try:
            if verdict.step == EditExporter(enabled=True):
                # Before it is said: a lease that waits for it would find nothing to wait for.
                await self._perform(seen, verdict)
                await self._say(seen, verdict)
            else:
                target = await self._say(seen, verdict)
                await self._perform(replace(seen, target=target), verdict)
        except (AlreadyExists, NotFound, Conflict):
            # Something changed since it was seen; look again.
            return Outcome(wake_at=now + UNLISTED_RETRY)
        if isinstance(verdict.step, ChangeDisks):
            return Outcome(wake_at=now + UNLISTED_RETRY)  # to say what came of it
        return Outcome(wake_at=verdict.wake_at)

    def _observe(self, target: VirtualTarget) -> TargetView:
        namespace, key = target.metadata.namespace, key_of(target)
        attached = {name: self._disks.get(namespace, name) for name in disks.names(target)}
        identity = target.status.identity or profiles.identity(target.metadata.uid)
        blueprint = self._blueprints.of_target(target, attached, identity)
        exporter = self._views.exporters.get(*key)
        provisioner = blueprint.profile.provisioner if blueprint.profile is not None else ""
        if exporter is not None:
            provisioner = exporter.metadata.annotations.get(profiles.PROVISIONER, provisioner)
        uid = exporter.metadata.uid if exporter is not None else ""
        holders = self._instance_view.holders(key)
        token = self._blueprints.token(exporter) if exporter is not None else ""
        instance = next((found for found in holders if found.owner_uid == uid), None)
        change, why = self._changes.get(key, ("", ""))
        made = blueprint.profile
        tried = made is not None and change == lasting_targets.disks_wanted(made, target)
        return TargetView(
            target=target,
            profile=blueprint.profile,
            problem=blueprint.problem,
            exporter=exporter,
            instance=instance,
            strangers=tuple(found for found in holders if found.owner_uid != uid),
            denied=self._instance_view.denied(exporter) if exporter is not None else None,
            available=provisioner in self._instance_view.provisioners,
            listed=self._instance_view.is_listed(provisioner)
            and (instance is not None or self._is_absence_current(target, provisioner)),
            startable=bool(token) and exporter is not None and bool(exporter.status.endpoint),
            disks=attached,
            copies=self._copies(namespace, attached),
            tried=tried,
            refused=why if tried else "",
        )

    def _copies(self, namespace: str, names: Iterable[str]) -> dict[str, str]:
        return {
            name: copy.metadata.name
            for name in names
            for copy in self._users.copies((namespace, name))
            if disks.being_copied(copy)
        }

    def _is_absence_current(self, target: VirtualTarget, provisioner: str) -> bool:
        """Whether a list without its machine is newer than its last start.

        Another process may have started it while this one hung, and the status arrives here
        before the next list does.
        """
        if not target.status.starts or provisioner not in self._instance_view.provisioners:
            return True
        key, start = key_of(target), (target.metadata.uid, target.status.starts)
        known = self._starts.get(key)
        if known is None or known[:2] != start:
            known = self._starts[key] = *start, self._instance_view.lists_begun(provisioner)
        return self._instance_view.is_listed_after(provisioner, known[2])

    async def _say(self, seen: TargetView, verdict: Verdict) -> VirtualTarget:
        """Write the status, on the version that was decided on."""
        now = self._clock.now()
        wanted = target_status.status(seen, verdict, now=now)
        before = seen.target
        if wanted == before.status or isinstance(verdict.step, Release):
            return before
        written = await self._objects.update_status(replace(before, status=wanted))
        self._targets.observe(written)
        ended, known = wanted.restarts, before.status.restarts
        if ended is not None and ended != known:
            text = f"{ended.reason}: {ended.message}"
            self._events.emit(written, reason="TargetEnded", message=text, warning=True)
        return written

    async def _perform(self, seen: TargetView, verdict: Verdict) -> None:
        target, exporter, step = seen.target, seen.exporter, verdict.step
        match step:
            case None:
                pass
            case Protect():
                await self._edit(target, (*target.metadata.finalizers, lasting_targets.FINALIZER))
            case Release():
                kept = (f for f in target.metadata.finalizers if f != lasting_targets.FINALIZER)
                await self._edit(target, tuple(kept))
            case MakeExporter():
                assert seen.profile is not None, "no Exporter without a class"
                made = await self._objects.create(_exporter(target, seen.profile.provisioner))
                self._views.exporters.observe(made)
            case EditExporter(enabled=enabled):
                assert exporter is not None, "only an Exporter that was seen is edited"
                edited = _edited(exporter, target, enabled=enabled)
                self._views.exporters.observe(await self._objects.update(edited))
            case RemoveExporter():
                assert exporter is not None, "only an Exporter that was seen is deleted"
                await self._objects.delete(exporter)
            case Stop() | Remove():
                await self._stop(target, step)
            case Start():
                await self._start(seen)
            case ChangeDisks():
                await self._change_disks(seen, step)
            case _:
                assert_never(step)

    async def _edit(self, target: VirtualTarget, finalizers: tuple[str, ...]) -> None:
        def edit(found: VirtualTarget) -> VirtualTarget:
            return replace(found, metadata=replace(found.metadata, finalizers=finalizers))

        await change(self._objects, self._targets, target, edit)

    async def _stop(self, target: VirtualTarget, step: Stop | Remove) -> None:
        key, provisioner = key_of(target), self._instance_view.provisioners[step.provisioner]
        await (provisioner.stop(key) if isinstance(step, Stop) else provisioner.remove(key))
        self._instance_view.drop(step.provisioner, key)
        self._events.emit(target, reason="TargetStopped", message=step.reason)

    async def _start(self, seen: TargetView) -> None:
        exporter, made = seen.exporter, seen.profile
        assert exporter is not None, "a target is started after its Exporter exists"
        assert made is not None, "a target is started with a class"
        token = self._blueprints.token(exporter)
        spec = self._blueprints.spec(exporter, made, token)
        provisioner = self._instance_view.provisioners[made.provisioner]
        self._starts[key_of(seen.target)] = seen.target.metadata.uid, seen.target.status.starts, -1
        self._instance_view.asked(exporter, token)
        try:
            self._instance_view.put(await provisioner.ensure(spec))
        except Unavailable as error:
            self._instance_view.deny(
                exporter, Stage.HELD, reason=error.reason, detail=error.message
            )
        except LabError as error:
            self._instance_view.deny(
                exporter, Stage.REFUSED, reason=error.reason, detail=error.message
            )
        else:
            text = f"started with settings {made.revision}"
            self._events.emit(seen.target, reason="TargetStarted", message=text)

    async def _change_disks(self, seen: TargetView, step: ChangeDisks) -> None:
        target, exporter, made = seen.target, seen.exporter, seen.profile
        assert exporter is not None, "a machine that runs has an Exporter"
        assert made is not None, "disks are changed with a class"
        spec = self._blueprints.spec(exporter, made, self._blueprints.token(exporter))
        key, wanted = key_of(target), lasting_targets.disks_wanted(made, target)
        try:
            await self._instance_view.provisioners[step.provisioner].change_disks(spec)
        except Unavailable:
            raise  # tried again after a pause
        except LabError as error:
            self._changes[key] = (wanted, error.message)
            self._events.emit(target, reason="DisksNotChanged", message=error.message, warning=True)
            return
        self._changes[key] = (wanted, "")
        changed = target_status.disks_changed(seen)
        if changed != target.status:
            self._targets.observe(
                await self._objects.update_status(replace(target, status=changed))
            )
        for name in disks.names(target):
            self._users.look_at((target.metadata.namespace, name))
        text = "the running machine has the disks it should have"
        self._events.emit(target, reason="DisksChanged", message=text)


def _exporter(target: VirtualTarget, provisioner: str) -> Exporter:
    meta = target.metadata
    passed = target_exporter.annotations_of(target, {profiles.PROVISIONER: provisioner})
    return Exporter(
        metadata=ObjectMeta(
            name=meta.name,
            namespace=meta.namespace,
            labels=target_exporter.labels_of(target, {}),
            annotations=passed,
            finalizers=(profiles.FINALIZER,),
            owner_references=(owner_reference(target),),
        ),
        # No client can use it before its machine runs.
        spec=ExporterSpec(enabled=False),
    )


def owner_reference(owner: VirtualTarget) -> OwnerReference:
    return OwnerReference(
        api_version=owner.api_version,
        kind=owner.kind,
        name=owner.metadata.name,
        uid=owner.metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )


def _edited(exporter: Exporter, target: VirtualTarget, *, enabled: bool) -> Exporter:
    meta = exporter.metadata
    return replace(
        exporter,
        metadata=replace(
            meta,
            labels=target_exporter.labels_of(target, meta.labels),
            annotations=target_exporter.annotations_of(target, meta.annotations),
        ),
        spec=replace(exporter.spec, enabled=enabled),
    )


def watch_targets(
    views: Views, instance_view: InstanceView, users: DiskUsers, add: Callable[[Key], None]
) -> None:
    """Start a pass when a target, its Exporter, its machine, its disks or its class changes."""
    targets = views[VirtualTarget]

    def target(old: VirtualTarget | None, new: VirtualTarget | None) -> None:
        value = new or old
        assert value is not None
        if old is None or new is None or _facts(old) != _facts(new):
            add(key_of(value))

    def known(key: Key) -> None:
        if targets.get(*key) is not None:
            add(key)

    def exporter(old: Exporter | None, new: Exporter | None) -> None:
        value = new or old
        assert value is not None
        known(key_of(value))

    def disk(old: VirtualDisk | None, new: VirtualDisk | None) -> None:
        value = new or old
        assert value is not None
        namespace, name = key_of(value)
        for found in filter(None, (name, disks.source_of(value))):
            for user in users.of((namespace, found)):
                add(key_of(user))

    def changed(old: object, new: object) -> None:
        for each in targets.all():
            add(key_of(each))

    targets.listen(target)
    views.exporters.listen(exporter)
    views[VirtualDisk].listen(disk)
    views.classes.listen(changed)
    instance_view.listen(known)


def _facts(target: VirtualTarget) -> tuple[object, ...]:
    """What a pass depends on, of the target itself; its status is written by the pass."""
    meta = target.metadata
    return (
        meta.uid,
        meta.generation,
        meta.deletion_timestamp,
        meta.finalizers,
        meta.labels,
        meta.annotations,
    )
