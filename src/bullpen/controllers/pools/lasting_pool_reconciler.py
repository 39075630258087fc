"""Keeps every VirtualTargetPool at its count: observes, asks ``core.pools.lasting_pool``, acts.

It creates, updates and deletes VirtualTargets and VirtualDisks; ``controllers.targets``
manages their machines and contents. What a later pass must know is in the pool's status.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import assert_never

from bullpen.api.fields import Kind
from bullpen.api.kinds.virtualdisk import VirtualDisk
from bullpen.api.kinds.virtualtarget import RESTART, VirtualTarget, VirtualTargetSpec
from bullpen.api.kinds.virtualtargetpool import (
    DISK_TEMPLATE,
    FREE_SINCE,
    POOL_NAME,
    POOL_UID,
    VirtualTargetPool,
)
from bullpen.api.meta import ObjectMeta, OwnerReference
from bullpen.api.objects import Objects, meta_of
from bullpen.controllers.object_edit import change_status, in_batches, together
from bullpen.controllers.pass_pause import PassPauses
from bullpen.controllers.pools.lasting_index import LastingIndex
from bullpen.controllers.pools.removals import forget_removals
from bullpen.controllers.views import Views
from bullpen.core.pools import lasting_disks, lasting_pool, lasting_status, refusals
from bullpen.core.pools.lasting_disks import Assignment, CreateDisk, DeleteDisk, EditDisk
from bullpen.core.pools.lasting_pool import (
    Action,
    Create,
    Delete,
    LastingPlan,
    LastingPool,
    Restart,
    Update,
    Usual,
)
from bullpen.core.pools.lasting_status import LastingReport
from bullpen.core.pools.refusals import Attempt
from bullpen.errors import AlreadyExists, Conflict, LabError, NotFound
from bullpen.kit import times
from bullpen.kit.clock import Clock
from bullpen.runtime.events import Events
from bullpen.runtime.informer import Informer, Key, key_of
from bullpen.runtime.loop import Outcome

PACE = timedelta(microseconds=50)
"""Pause between passes, per member: a burst of changes in a large pool causes few passes."""


class LastingPoolReconciler:
    """Reconciles one VirtualTargetPool."""

    name = "virtualtargetpools"

    def __init__(
        self,
        objects: Objects,
        views: Views,
        index: LastingIndex,
        *,
        clock: Clock,
        events: Events,
        chance: random.Random,
    ) -> None:
        self._objects = objects
        self._views = views
        self._pools = views[VirtualTargetPool]
        self._targets = views[VirtualTarget]
        self._disks = views[VirtualDisk]
        self._index = index
        self._clock = clock
        self._events = events
        self._chance = chance
        self._gone: dict[Key, str] = {}
        """Uids of pools that the API no longer has although the view does.

        What such a pool creates is deleted at once, and would be created again, without end.
        """

        self._pauses: PassPauses[Key] = PassPauses(PACE)

    async def reconcile(self, key: Key) -> Outcome:
        pool = self._pools.get(*key)
        if pool is None or pool.metadata.deletion_timestamp is not None:
            # Owner references let members and disks go with their pool.
            self._pauses.forget(key)
            self._gone.pop(key, None)
            return Outcome()
        if self._gone.get(key) == pool.metadata.uid:
            return Outcome()
        now = self._clock.now()
        resting = self._pauses.until(key, now=now)
        if resting is not None:
            return Outcome(wake_at=resting)
        assigned, seen = self._observe(pool)
        self._pauses.begin(key, seen.count, now=now)
        plan = lasting_pool.plan(seen, now=now)
        if plan.creates and self._index.of(pool.metadata.uid).known_below < pool.status.created:
            await self._catch_up(pool)
            assigned, seen = self._observe(pool)
            plan = lasting_pool.plan(seen, now=now)
        attempts = await self._act(seen, plan)
        # New members get their disks now; those of their own follow when the member exists.
        written = {a.name for a in plan.actions if isinstance(a, Create | Update)}
        disks = lasting_disks.plan(assigned, written=written, now=now)
        errors = await together(self._perform_disk(pool, assigned, act) for act in disks.actions)
        report = self._report(seen, plan, attempts, disks.created, now)
        await self._say(report, now)
        error = next(
            (e for e in (*(a.error for a in attempts if not a.refused), *errors) if e), None
        )
        if error is not None and not isinstance(error, Conflict | NotFound | AlreadyExists):
            raise error
        again = now + timedelta(seconds=1) if error is not None else None
        wakes = (again, disks.wake_at, *(found.retry_at for found in report.refusals))
        return Outcome(wake_at=min((wake for wake in wakes if wake is not None), default=None))

    async def _catch_up(self, pool: VirtualTargetPool) -> None:
        """Ask the API for members that are on record as created and were never seen.

        Another process may have created them a moment ago, or this one without an answer; it
        would replace them.
        """
        uid, namespace = pool.metadata.uid, pool.metadata.namespace
        found = self._objects.pages(VirtualTarget, namespace=namespace, labels=f"{POOL_UID}={uid}")
        async with contextlib.aclosing(found) as pages:
            async for page in pages:
                for target in page:
                    self._targets.observe(target)
        self._index.knows_below(uid, pool.status.created)

    def _observe(self, pool: VirtualTargetPool) -> tuple[Assignment, LastingPool]:
        index = self._index.of(pool.metadata.uid)
        index.settle(pool)
        members = index.unusual
        assigned = Assignment(
            pool=pool,
            targets=tuple(member.target for member in members),
            found=index.loose_disks,
            next_number=index.highest_disk,
        )
        seen = LastingPool(
            pool=pool,
            members=members,
            usual=Usual(
                count=index.usual,
                leased=index.usual_leased,
                first_number=index.highest,
                members=index.ordinary,
            ),
            taken=_Names(self._targets, pool.metadata.namespace),
            refusals=lasting_status.refusals(pool),
            spec_of=assigned.spec_of,
        )
        return assigned, seen

    async def _act(self, seen: LastingPool, plan: LastingPlan) -> list[Attempt]:
        attempts: list[Attempt] = []
        for kind in (Delete, Create, Update, Restart):
            group = [action for action in plan.actions if isinstance(action, kind)]
            errors = await in_batches(
                [partial(self._perform, seen, action) for action in group], stops=_stops
            )
            attempts += [
                Attempt(operation=kind.__name__, name=action.name, error=error)
                for action, error in zip(group, errors, strict=False)
            ]
        if plan.gone:
            await forget_removals(
                self._objects, self._pools, self._targets, VirtualTarget, seen.pool, plan.gone
            )
        return attempts

    async def _perform(self, seen: LastingPool, action: Action) -> None:
        pool = seen.pool
        match action:
            case Create(name=name):
                made = _member(pool, name, seen.spec_of(name, None))
                self._targets.observe(await self._objects.create(made))
            case Delete(name=name):
                # Exactly what was seen: a member that changed since is looked at again.
                await self._objects.delete(self._member(pool, name))
            case Update(name=name):
                found = self._member(pool, name)
                written = await self._objects.update(_updated(found, pool, seen))
                self._targets.observe(written)
            case Restart(name=name):
                written = await self._objects.update(_approved(self._member(pool, name)))
                self._targets.observe(written)
            case _:
                assert_never(action)

    def _member(self, pool: VirtualTargetPool, name: str) -> VirtualTarget:
        found = self._targets.get(pool.metadata.namespace, name)
        if found is None:
            raise NotFound(f"{name} is gone")
        return found

    async def _perform_disk(
        self, pool: VirtualTargetPool, assigned: Assignment, action: lasting_disks.DiskAction
    ) -> None:
        match action:
            case CreateDisk(member=member):
                owner = self._member(pool, member) if member else pool
                self._disks.observe(await self._objects.create(_disk(pool, owner, action)))
            case DeleteDisk(name=name, reason=reason):
                # Exactly what was seen: a disk that was reused meanwhile stays.
                await self._objects.delete(assigned.found[name])
                text = f"VirtualDisk {name}: {reason}"
                self._events.emit(pool, reason="DiskDeleted", message=text)
            case EditDisk(name=name, member=member):
                moved = self._member(pool, member) if member else pool
                edited = _edited(assigned.found[name], action, moved)
                self._disks.observe(await self._objects.update(edited))
            case _:
                assert_never(action)

    def _report(
        self,
        seen: LastingPool,
        plan: LastingPlan,
        attempts: Sequence[Attempt],
        created_disks: int,
        now: datetime,
    ) -> LastingReport:
        well = {(each.operation, each.name) for each in attempts if each.error is None}
        done = tuple(a for a in plan.actions if (type(a).__name__, a.name) in well)
        wanted = {type(action).__name__ for action in plan.actions}
        earlier = tuple(r for r in seen.refusals if r.operation in wanted or plan.missing)
        names = [action.name for action in done if isinstance(action, Create)]
        numbers = [int(name.rpartition("-")[2]) + 1 for name in names]
        return LastingReport(
            seen=seen,
            plan=plan,
            done=done,
            refusals=refusals.recorded(earlier, attempts, now=now, chance=self._chance),
            created=max((lasting_pool.next_number(seen), *numbers)),
            created_disks=created_disks,
        )

    async def _say(self, report: LastingReport, now: datetime) -> None:
        pool = self._pools.get(*key_of(report.seen.pool)) or report.seen.pool
        # The members as they are now, after what was done.
        _, seen = self._observe(pool)
        after = replace(report, seen=seen)
        try:
            await change_status(
                self._objects,
                self._pools,
                pool,
                lambda found: lasting_status.status(found, after, now=now),
            )
        except NotFound:
            self._gone[key_of(pool)] = pool.metadata.uid
            return
        for note in lasting_status.notes(report.done):
            self._events.emit(pool, reason=note.reason, message=note.message, warning=note.warning)
        for refusal in report.refusals:
            if refusal.at == now:
                text = f"{refusal.name}: {refusal.reason}: {refusal.message}"
                self._events.emit(pool, reason=refusal.event_reason, message=text, warning=True)


class _Names:
    """The names of the targets of a namespace."""

    def __init__(self, targets: Informer[VirtualTarget], namespace: str) -> None:
        self._targets = targets
        self._namespace = namespace

    def __contains__(self, name: object) -> bool:
        return self._targets.get(self._namespace, str(name)) is not None


def watch_lasting_pools(views: Views, index: LastingIndex, add: Callable[[Key], None]) -> None:
    """Start a pass when a pool, a member of it, its lease or a disk changes."""
    keys: dict[str, Key] = {}
    """By the uid of a pool."""

    def pool(old: VirtualTargetPool | None, new: VirtualTargetPool | None) -> None:
        value = new or old
        assert value is not None
        keys[value.metadata.uid] = key_of(value)
        if old is None or new is None or old.metadata.generation != new.metadata.generation:
            add(key_of(value))
        if new is None:
            del keys[value.metadata.uid]

    def owned(uid: str) -> None:
        if uid in keys:
            add(keys[uid])

    views[VirtualTargetPool].listen(pool)
    index.listen(owned)


def _stops(error: LabError) -> bool:
    """Whether the next operation of the same kind would fail as well."""
    return not isinstance(error, Conflict | NotFound | AlreadyExists)


def _owner(found: Kind) -> OwnerReference:
    meta = meta_of(found)
    return OwnerReference(
        api_version=found.api_version,
        kind=found.kind,
        name=meta.name,
        uid=meta.uid,
        controller=True,
        block_owner_deletion=True,
    )


def _member(pool: VirtualTargetPool, name: str, spec: VirtualTargetSpec) -> VirtualTarget:
    meta = ObjectMeta(
        name=name,
        namespace=pool.metadata.namespace,
        labels=lasting_pool.member_labels(pool),
        annotations=pool.spec.template.metadata.annotations,
        owner_references=(_owner(pool),),
    )
    return VirtualTarget(metadata=meta, spec=spec)


def _updated(found: VirtualTarget, pool: VirtualTargetPool, seen: LastingPool) -> VirtualTarget:
    """A member with the current template; labels of the old template are removed."""
    annotations = {**found.metadata.annotations, **pool.spec.template.metadata.annotations}
    meta = replace(found.metadata, labels=lasting_pool.member_labels(pool), annotations=annotations)
    return replace(found, metadata=meta, spec=seen.spec_of(found.metadata.name, found))


def _approved(found: VirtualTarget) -> VirtualTarget:
    """A member whose restart is approved, for as long as it is not started again."""
    annotations = {**found.metadata.annotations, RESTART: f"disks-{found.status.starts}"}
    return replace(found, metadata=replace(found.metadata, annotations=annotations))


def _disk(pool: VirtualTargetPool, owner: Kind, action: CreateDisk) -> VirtualDisk:
    meta = ObjectMeta(
        name=action.name,
        namespace=pool.metadata.namespace,
        labels={
            POOL_UID: pool.metadata.uid,
            POOL_NAME: pool.metadata.name,
            DISK_TEMPLATE: action.template,
        },
        owner_references=(_owner(owner),),
    )
    return VirtualDisk(metadata=meta, spec=action.spec)


def _edited(disk: VirtualDisk, action: EditDisk, owner: Kind) -> VirtualDisk:
    meta, annotations = disk.metadata, dict(disk.metadata.annotations)
    if action.used:
        annotations.pop(FREE_SINCE, None)
    if action.free_since is not None:
        annotations[FREE_SINCE] = times.text(action.free_since)
    owners = meta.owner_references
    if action.member is not None:
        owners = (*(each for each in owners if not each.controller), _owner(owner))
    return replace(
        disk,
        metadata=replace(meta, annotations=annotations, owner_references=owners),
        spec=replace(disk.spec, size=action.size) if action.size != "" else disk.spec,
    )
