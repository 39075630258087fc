"""Creates the instance of every pool member, and removes it with the member.

A finalizer keeps a member's Exporter until its instance is gone, and an instance without an
Exporter is removed, so that neither outlives the other.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import assert_never

from bullpen.api.kinds.core import Secret
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.exporterset import ExporterSet
from bullpen.api.kinds.lease import Lease, LeaseStatus
from bullpen.api.kinds.virtualtarget import VirtualTarget
from bullpen.api.kinds.virtualtargetclass import CredentialRotation
from bullpen.api.objects import Objects
from bullpen.controllers.object_edit import change_status
from bullpen.controllers.targets.blueprints import Blueprints, owner_of
from bullpen.controllers.targets.instance_view import InstanceView
from bullpen.controllers.views import Views
from bullpen.core.leases import sessions
from bullpen.core.pools.members import REVISION, Stage
from bullpen.core.targets import instances
from bullpen.core.targets.instances import (
    Create,
    Delete,
    Desired,
    InstancePhase,
    Observed,
    Release,
    Retire,
    Wait,
    Withdraw,
)
from bullpen.core.targets.profiles import FINALIZER, PROVISIONER, Profile
from bullpen.errors import LabError, NotFound, Unavailable
from bullpen.kit.clock import Clock
from bullpen.runtime.events import Events
from bullpen.runtime.informer import Key, key_of
from bullpen.runtime.loop import Outcome

WORKERS = 256
"""Members processed concurrently, most of which wait for a backend."""

LANE_MAX = 16
"""Members of one pool that are removed concurrently, and as many that are not."""


BEHIND_LOOK = timedelta(seconds=2)
"""How soon it is looked again whether an instance has an owner that a view had not seen."""

WARNED_MAX = 1_000
"""Owners of which it is remembered what they were told; beyond it one may be told again."""


def lane(views: Views, key: Key) -> tuple[str, bool]:
    """The pool of a member, and whether it is being removed.

    A backend may take minutes to remove an instance; this must delay neither starts nor other
    pools.
    """
    found = views.exporters.get(*key)
    owner = owner_of(found) if found is not None else None
    removed = found is None or found.metadata.deletion_timestamp is not None
    return owner.uid if owner is not None else "", removed


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
        self._warned: dict[str, str] = {}
        """By the uid of a set or target, the warning that it was told last."""

        self._files: dict[str, str] = {}
        """By the uid of a member, which version of its credentials it was given."""

        views.exporters.listen(self._changed)

    def _changed(self, old: Exporter | None, new: Exporter | None) -> None:
        if new is None and old is not None:
            self._instance_view.forget(old)
            self._retired.discard(old.metadata.uid)
            self._files.pop(old.metadata.uid, None)

    async def reconcile(self, key: Key) -> Outcome:
        found = self._views.exporters.get(*key)
        if found is not None:
            self._warn(found)
        ours = found is not None and is_member(found) and self._instance_view.looks_after(found)
        if found is not None and owned_by_target(found):
            # Its target starts and stops it; here it is removed with its Exporter.
            if found.metadata.deletion_timestamp is None:
                return Outcome()
        elif found is None and self._views[VirtualTarget].get(*key) is not None:
            return Outcome()
        if found is None or not ours:
            return await self._remove_orphans(key)
        return await self._tend(found)

    def _warn(self, exporter: Exporter) -> None:
        """Tell the owner of an exporter, once, what is worse about its instances than need be."""
        instance = self._instance_view.instance(exporter)
        owner = self._owner(exporter)
        if instance is None or owner is None or not instance.up:
            return
        uid, warning = owner.metadata.uid, instance.warning
        if warning and self._warned.get(uid) != warning:
            self._warned[uid] = warning
            while len(self._warned) > WARNED_MAX:
                del self._warned[next(iter(self._warned))]
            text = f"{exporter.metadata.name}: {warning}"
            self._events.emit(owner, reason="InstanceWarning", message=text, warning=True)

    def _owner(self, exporter: Exporter) -> ExporterSet | VirtualTarget | None:
        if owned_by_target(exporter):
            return self._views[VirtualTarget].get(*key_of(exporter))
        return self._blueprints.owner(exporter)

    async def _remove_orphans(self, key: Key) -> Outcome:
        """Remove the instances of a name that has no member here.

        A process that hung, or is not the leader any more, may not have seen the member yet, and a
        lease may be on it. So the API itself is asked before.
        """
        seen = Observed(instances=self._instance_view.holders(key))
        steps = instances.next_steps(None, seen, now=self._clock.now())
        if steps and self._views.exporters.get(*key) is None and await self._exists(key):
            return Outcome(wake_at=self._clock.now() + BEHIND_LOOK)
        for step in steps:
            assert isinstance(step, Delete)
            await self._delete(key, step)
        return Outcome()

    async def _exists(self, key: Key) -> bool:
        """Whether the API has an Exporter or a VirtualTarget of this name."""
        for kind in (Exporter, VirtualTarget):
            with contextlib.suppress(NotFound):
                await self._objects.get(kind, *key)
                return True
        return False

    async def _tend(self, member: Exporter) -> Outcome:
        profile, token = self._profile(member), self._blueprints.token(member)
        wanted = instances.desired(member, startable=profile is not None and bool(token))
        seen = self._instance_view.observed(member, retired=wanted.uid in self._retired)
        if wanted.registered_before and seen.listed and not seen.instances:
            self._instance_view.missed(member)
        for step in instances.next_steps(wanted, seen, now=self._clock.now()):
            match step:
                case Delete():
                    released = await self._delete_for(member, wanted, step)
                    if released:
                        return Outcome()
                case Release():
                    await self._release(member, step)
                case Create():
                    assert profile is not None, "a member without a profile is not startable"
                    return await self._create(member, profile, token)
                case Retire():
                    await self._retire(member)
                case Withdraw(notice=notice):
                    await self._withdraw(member, notice)
                case Wait(until=until):
                    return Outcome(wake_at=until)
                case _:
                    assert_never(step)
        return await self._update_credentials(member, profile, token)

    async def _update_credentials(
        self, member: Exporter, profile: Profile | None, token: str
    ) -> Outcome:
        """Give a running instance the current contents of its class's Secret, in place."""
        uid, instance = member.metadata.uid, self._instance_view.instance(member)
        if profile is None or profile.files is None or self._files.get(uid) == profile.files:
            return Outcome()
        provisioner = self._instance_view.provisioner_of(member)
        if provisioner is None or instance is None or instance.phase is not InstancePhase.RUNNING:
            return Outcome()
        await provisioner.update_credentials(self._blueprints.spec(member, profile, token))
        self._files[uid] = profile.files
        return Outcome()

    async def _delete(self, key: Key, step: Delete) -> None:
        try:
            await self._instance_view.provisioners[step.provisioner].remove(key)
        except Unavailable as error:
            self._instance_view.not_removed(key, error.message)
            raise
        self._instance_view.drop(step.provisioner, key)

    async def _delete_for(self, member: Exporter, wanted: Desired, step: Delete) -> bool:
        """Remove an instance; True if its Exporter was released although that failed."""
        try:
            await self._delete(key_of(member), step)
        except Unavailable as error:
            if step.owner_uid != wanted.uid:
                raise
            released = instances.after_failed_removal(wanted, error.message, now=self._clock.now())
            if released is None:
                raise
            await self._release(member, released)
            return True
        return False

    async def _release(self, member: Exporter, step: Release) -> None:
        """Remove the Exporter's finalizer."""
        if step.warning:
            text = f"its instance may still exist: {step.warning}"
            self._events.emit(member, reason="InstanceLeft", message=text, warning=True)
        kept = tuple(name for name in member.metadata.finalizers if name != FINALIZER)
        with contextlib.suppress(NotFound):  # it was deleted meanwhile
            await self._objects.update(
                replace(member, metadata=replace(member.metadata, finalizers=kept))
            )

    async def _create(self, member: Exporter, profile: Profile, token: str) -> Outcome:
        provisioner = self._instance_view.provisioner_of(member)
        assert provisioner is not None, "only instances of available provisioners are created"
        spec = self._blueprints.spec(member, profile, token)
        self._instance_view.asked(member, token)
        try:
            self._instance_view.put(await provisioner.ensure(spec))
        except Unavailable as error:
            self._instance_view.deny(member, Stage.HELD, reason=error.reason, detail=error.message)
            wait = instances.capacity_retry(now=self._clock.now(), chance=self._chance.random())
            return Outcome(wake_at=wait.until)
        except LabError as error:
            self._instance_view.deny(
                member, Stage.REFUSED, reason=error.reason, detail=error.message
            )
        return Outcome()

    async def _retire(self, member: Exporter) -> None:
        provisioner = self._instance_view.provisioner_of(member)
        assert provisioner is not None, "only instances of available provisioners are retired"
        await provisioner.retire(key_of(member))
        self._retired.add(member.metadata.uid)

    async def _withdraw(self, member: Exporter, notice: str) -> None:
        """The lessee is told first: a service that is killed in between tells it again."""
        holder = member.status.lease_ref
        lease = self._views.leases.get(member.metadata.namespace, holder.name) if holder else None

        def told(newest: Lease) -> LeaseStatus:
            if newest.status.ended:
                return newest.status
            text = f"its target ends soon: {notice}; save your work"
            return sessions.endangered(newest, message=text, now=self._clock.now())

        if lease is not None:
            with contextlib.suppress(NotFound):  # it ended meanwhile
                await change_status(self._objects, self._views.leases, lease, told)
        disabled = replace(member, spec=replace(member.spec, enabled=False))
        self._views.exporters.observe(await self._objects.update(disabled))
        owner = self._owner(member)
        if owner is not None:
            text = f"{member.metadata.name}: {notice}"
            self._events.emit(owner, reason="InstanceEnds", message=text, warning=True)

    def _profile(self, member: Exporter) -> Profile | None:
        """The profile the member is created from; None if it is invalid or of another revision."""
        owner = self._blueprints.owner(member)
        blueprint = self._blueprints.of(owner) if owner is not None else None
        if blueprint is None or blueprint.profile is None or blueprint.problem is not None:
            return None
        current = member.metadata.labels.get(REVISION) == blueprint.profile.revision
        return blueprint.profile if current else None


def is_member(exporter: Exporter) -> bool:
    """Whether a pool of ours created the exporter, and so its instance."""
    return PROVISIONER in exporter.metadata.annotations


def owned_by_target(exporter: Exporter) -> bool:
    """Whether a lasting target has made the exporter."""
    return any(
        reference.controller and reference.kind == VirtualTarget.kind
        for reference in exporter.metadata.owner_references
    )


def watch_members(views: Views, instance_view: InstanceView, add: Callable[[Key], None]) -> None:
    """Start a pass whenever a member or its instance changes in a relevant way."""

    def exporter(old: Exporter | None, new: Exporter | None) -> None:
        value = new or old
        assert value is not None
        if is_member(value) and (old is None or new is None or _facts(old) != _facts(new)):
            add(key_of(value))

    def secret(old: Secret | None, new: Secret | None) -> None:
        value = new or old
        assert value is not None
        namespace, name = key_of(value)
        users = {
            found.metadata.name
            for found in views.classes.all(namespace)
            if found.spec.credential_rotation is CredentialRotation.IN_PLACE
            and found.spec.credentials_secret_ref is not None
            and found.spec.credentials_secret_ref.name == name
        }
        sets = {
            owner.metadata.uid
            for owner in (views.sets.all(namespace) if users else ())
            if owner.spec.virtual_target_class_name in users
        }
        for member in views.exporters.all(namespace) if sets else ():
            owner_reference = owner_of(member)
            if owner_reference is not None and owner_reference.uid in sets:
                add(key_of(member))

    def target(old: VirtualTarget | None, new: VirtualTarget | None) -> None:
        # A machine that was made too late for it has no owner from now on.
        if new is None and old is not None:
            add(key_of(old))

    views.exporters.listen(exporter)
    views.secrets.listen(secret)
    views[VirtualTarget].listen(target)
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
        instances.in_last_lease(exporter),
    )
