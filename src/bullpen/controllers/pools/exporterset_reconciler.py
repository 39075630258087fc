"""Keeps every pool at its target size: observes, asks ``core.pools.scale_plan``, acts.

It creates, disables and deletes Exporters; ``controllers.targets`` manages their instances.
It keeps no state that a restart may not lose: what a later pass must know is in the set's
status.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import assert_never

from bullpen.api.kinds.exporter import Exporter, ExporterSpec
from bullpen.api.kinds.exporterset import SET_UID, ExporterSet
from bullpen.api.objects import Objects
from bullpen.controllers.object_edit import change_status, in_batches
from bullpen.controllers.pass_pause import PassPauses
from bullpen.controllers.pools.pool_observer import Look, PoolObserver
from bullpen.controllers.pools.removals import forget_removals
from bullpen.controllers.targets.blueprints import Blueprint, owner_of
from bullpen.controllers.views import Views
from bullpen.core.leases.requests import Supply
from bullpen.core.matcher import Device
from bullpen.core.pools import (
    decision_log,
    forecast,
    pool_status,
    refusals,
    scale_plan,
    start_throttle,
)
from bullpen.core.pools.members import REVISION, Phase, Stage
from bullpen.core.pools.pool_status import Report
from bullpen.core.pools.refusals import Attempt, Refusal
from bullpen.core.pools.scale_plan import Action, Create, Delete, Drain, Plan, Rule
from bullpen.core.targets import profiles
from bullpen.core.targets.profiles import Profile
from bullpen.errors import AlreadyExists, Conflict, LabError, NotFound, Unavailable
from bullpen.kit.clock import Clock
from bullpen.runtime.events import Events
from bullpen.runtime.informer import Key, key_of
from bullpen.runtime.loop import Outcome

PACE = timedelta(microseconds=50)
"""Pause between passes, per member: a burst of changes in a large pool causes few passes."""

NAMES_LOOK = timedelta(seconds=10)
"""How often a set checks whether member names used by other exporters are free again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """What came of a plan."""

    done: tuple[Action, ...]
    attempts: tuple[Attempt, ...]
    refusals: tuple[Refusal, ...]
    """Earlier refusals of operations that are still wanted."""

    error: LabError | None
    """The first error after which the pass is repeated; a refusal is not one of them."""

    @classmethod
    def of(cls, plan: Plan, attempts: tuple[Attempt, ...], earlier: tuple[Refusal, ...]) -> _Result:
        well = {(attempt.operation, attempt.name) for attempt in attempts if not attempt.error}
        errors = (attempt.error for attempt in attempts if not attempt.refused)
        return cls(
            done=tuple(a for a in plan.actions if (type(a).__name__, a.name) in well),
            attempts=attempts,
            refusals=earlier,
            error=next((error for error in errors if error is not None), None),
        )


class ExporterSetReconciler:
    """Reconciles one ExporterSet."""

    name = "exportersets"

    def __init__(
        self,
        objects: Objects,
        views: Views,
        observer: PoolObserver,
        *,
        nudge: Callable[[Key], None],
        supply_changed: Callable[[str], None],
        clock: Clock,
        events: Events,
        chance: random.Random,
    ) -> None:
        """``nudge`` starts a pass for a member, ``supply_changed`` one for waiting leases."""
        self._objects = objects
        self._views = views
        self._observer = observer
        self._nudge = nudge
        self._supply_changed = supply_changed
        self._clock = clock
        self._events = events
        self._chance = chance
        self._messages: dict[Key, str] = {}
        """The message for leases that wait for a set."""

        self._contested: dict[Key, set[str]] = {}
        """Names a set could not use: taken by other exporters, or by members not yet observed."""

        self._gone: dict[Key, str] = {}
        """Uids of sets that the API no longer has although the view does.

        What such a set creates is deleted at once, and would be created again, without end.
        """

        self._pauses: PassPauses[Key] = PassPauses(PACE)
        self._blueprints: dict[Key, Blueprint] = {}
        """The blueprint of a set's members at its last pass."""

    def supplies(self, namespace: str) -> tuple[Supply, ...]:
        """The pools of a namespace, for the scheduler."""
        return tuple(
            Supply(
                name=owner.metadata.name,
                member=Device(labels=profiles.labels(owner)),
                message=self._messages.get(
                    key_of(owner), f"pool {owner.metadata.name} is being set up"
                ),
                ceiling=forecast.ceiling(owner),
                boot=owner.status.typical_boot or timedelta(0),
            )
            for owner in self._observer.sets(namespace)
        )

    async def reconcile(self, key: Key) -> Outcome:
        owner = self._views.sets.get(*key)
        if owner is None or owner.metadata.deletion_timestamp is not None:
            self._forget(key)
            return Outcome()
        if not self._observer.looks_after(owner) or self._gone.get(key) == owner.metadata.uid:
            return Outcome()
        now = self._clock.now()
        resting = self._pauses.until(key, now=now)
        if resting is not None:
            return Outcome(wake_at=resting)
        taken = await self._taken(owner)
        look = self._observer.observe(owner, taken=taken, now=now)
        self._pauses.begin(key, len(look.pool.members), now=now)
        plan = scale_plan.plan(look.pool, now=now)
        result = await self._act(look, plan, now)
        report = self._report(look, plan, result, now)
        await self._say(owner, report, now)
        self._announce(key, forecast.message(look.pool, plan, boots=look.boots, now=now))
        self._look_after(key, look)
        if result.error is not None:
            raise result.error
        return Outcome(wake_at=_earliest(look, plan, report, now))

    async def _act(self, look: Look, plan: Plan, now: datetime) -> _Result:
        """Carry out a plan. Each operation has batches of its own, and all run at once."""
        owner = look.owner
        groups = [[a for a in plan.actions if isinstance(a, kind)] for kind in _OPERATIONS]
        work = [self._attempts(look, group) for group in groups if group]
        # Registration removes some labels; without them no lease would find the member.
        bare = self._observer.member_views.unlabelled(owner, look.revision)
        refused = refusals.of(look.pool.refusals, refusals.RELABEL) if bare else None
        if relabels := refusals.permitted(refused, bare, now=now):
            work.append(self._relabels(look, relabels))
        attempts = await _joined(work)
        if plan.gone:
            views = self._views
            await forget_removals(
                self._objects, views.sets, views.exporters, Exporter, owner, plan.gone
            )
        return _Result.of(plan, attempts, (*plan.refusals, refused) if refused else plan.refusals)

    async def _attempts(self, look: Look, group: Sequence[Action]) -> list[Attempt]:
        errors = await in_batches(
            [partial(self._perform, look, action) for action in group], stops=_stops
        )
        return [
            Attempt(operation=type(action).__name__, name=action.name, error=error)
            for action, error in zip(group, errors, strict=False)
        ]

    async def _relabels(self, look: Look, bare: Sequence[Exporter]) -> list[Attempt]:
        errors = await in_batches(
            [partial(self._relabel, look, exporter) for exporter in bare], stops=_stops
        )
        return [
            Attempt(operation=refusals.RELABEL, name=exporter.metadata.name, error=error)
            for exporter, error in zip(bare, errors, strict=False)
        ]

    async def _perform(self, look: Look, action: Action) -> None:
        uid, member_views = look.owner.metadata.uid, self._observer.member_views
        match action:
            case Create(name=name):
                made = look.blueprint.profile
                assert made is not None, "nothing is created without a class"
                await self._create(look.owner, name, made)
            case Drain(name=name):
                exporter = member_views.exporter(uid, name)
                await self._update(replace(exporter, spec=replace(exporter.spec, enabled=False)))
            case Delete(name=name):
                # The delete carries the version that was seen unleased: if a lease was assigned
                # since, it fails, and the next pass decides again.
                await self._objects.delete(member_views.exporter(uid, name))
                member_views.deleted(uid, name)
            case _:
                assert_never(action)

    async def _create(self, owner: ExporterSet, name: str, made: Profile) -> None:
        meta = profiles.member_metadata(owner, name, made)
        try:
            written = await self._objects.create(Exporter(metadata=meta, spec=ExporterSpec()))
        except (AlreadyExists, Unavailable) as error:
            # It belongs to another owner, or we just created it: the next pass finds out.
            self._contested.setdefault(key_of(owner), set()).add(name)
            if isinstance(error, Unavailable):
                raise
            raise Conflict(f"there may be an exporter {name} already: {error.message}") from None
        self._views.exporters.observe(written)

    async def _taken(self, owner: ExporterSet) -> dict[str, str]:
        """The contested names that exporters outside the set use, and what those are."""
        contested = self._contested.get(key_of(owner), set())
        found: dict[str, str] = {}
        for name in sorted(contested):
            other = await self._whose(owner, name)
            if other is None:
                contested.remove(name)
            else:
                found[name] = _other(other)
        return found

    async def _whose(self, owner: ExporterSet, name: str) -> Exporter | None:
        """The exporter outside the set that has this name; None if it is free or ours."""
        namespace = owner.metadata.namespace
        found = self._views.exporters.get(namespace, name)
        if found is None:
            with contextlib.suppress(NotFound):
                found = await self._objects.get(Exporter, namespace, name)
                self._views.exporters.observe(found)
        controller = owner_of(found) if found is not None else None
        return None if controller is not None and controller.uid == owner.metadata.uid else found

    async def _update(self, exporter: Exporter) -> None:
        self._views.exporters.observe(await self._objects.update(exporter))

    async def _relabel(self, look: Look, exporter: Exporter) -> None:
        owner, meta = look.owner, exporter.metadata
        if meta.labels.get(REVISION) == look.revision:
            meta = profiles.updated_in_place(owner, meta)
        else:
            meta = replace(meta, labels={**meta.labels, SET_UID: owner.metadata.uid})
        await self._update(replace(exporter, metadata=meta))

    def _report(self, look: Look, plan: Plan, result: _Result, now: datetime) -> Report:
        given_up = {action.name for action in result.done if action.rule in _GIVEN_UP}
        failed = [
            m
            for m in look.pool.member_index.unusual
            if m.name in given_up and m.current and m.blames_template
        ]
        return Report(
            pool=look.pool,
            plan=plan,
            start_history=start_throttle.failed(
                plan.start_history, failed, now=now, chance=self._chance
            ),
            refusals=refusals.recorded(
                result.refusals, result.attempts, now=now, chance=self._chance
            ),
            done=result.done,
            revision=look.revision,
            generation=look.owner.metadata.generation,
            boots=look.boots,
            problem=look.blueprint.problem,
        )

    async def _say(self, owner: ExporterSet, report: Report, now: datetime) -> None:
        try:
            written = await change_status(
                self._objects,
                self._views.sets,
                owner,
                lambda found: pool_status.status(found, report, now=now),
            )
        except NotFound:
            self._gone[key_of(owner)] = owner.metadata.uid
            return
        notes = decision_log.notes(report.done, now=now)
        changes = pool_status.transitions(owner.status.conditions, written.status.conditions)
        refused = decision_log.refused(report.refusals, now=now)
        for note in (*notes, *refused, *changes):
            self._events.emit(owner, reason=note.reason, message=note.message, warning=note.warning)

    def _announce(self, key: Key, message: str) -> None:
        """Start a lease pass, because the message for waiting leases has changed."""
        if self._messages.get(key) != message:
            self._messages[key] = message
            if self._observer.is_waited_for(key[0]):
                self._supply_changed(key[0])

    def _forget(self, key: Key) -> None:
        """The set is deleted or terminating: leases waiting for it must be decided again."""
        self._pauses.forget(key)
        self._gone.pop(key, None)
        self._contested.pop(key, None)
        self._blueprints.pop(key, None)
        if self._messages.pop(key, None) is not None:
            self._supply_changed(key[0])

    def _look_after(self, key: Key, look: Look) -> None:
        """Members without an instance may have waited for inputs that have now become available."""
        if self._blueprints.get(key) == look.blueprint:
            return
        self._blueprints[key] = look.blueprint
        for member in look.pool.member_index.unusual:
            if member.stage is Stage.ABSENT and member.phase is Phase.STARTING:
                self._nudge((key[0], member.name))


_OPERATIONS = (Delete, Create, Drain)
_GIVEN_UP = (Rule.FAILED_TO_START, Rule.CRASHED)


async def _joined(work: Sequence[Coroutine[None, None, list[Attempt]]]) -> tuple[Attempt, ...]:
    """The attempts of several operations that run at once; a single one needs no task."""
    if len(work) == 1:
        return tuple(await work[0])
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(operation) for operation in work]
    return tuple(attempt for task in running for attempt in task.result())


def _other(exporter: Exporter) -> str:
    """An exporter that has the name of a member and is none, as the pool's conditions say it."""
    if exporter.metadata.deletion_timestamp is not None:
        return "an exporter that is still being deleted"
    return "an exporter outside this set; delete it, or raise spec.maxReplicas"


def _stops(error: LabError) -> bool:
    """Whether the next operation of the same kind would fail as well."""
    return not isinstance(error, Conflict | NotFound)


def _earliest(look: Look, plan: Plan, report: Report, now: datetime) -> datetime | None:
    """The next moment at which time alone changes something; never in the past."""
    failures = report.start_history.failures
    names = now + NAMES_LOOK if look.pool.taken or look.pool.stuck else None
    moments = (
        plan.wake_at,
        look.booking,
        failures.retry_at if failures else None,
        names,
        *(refusal.retry_at for refusal in report.refusals),
    )
    return min((moment for moment in moments if moment is not None and moment > now), default=None)
