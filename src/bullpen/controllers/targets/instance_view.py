"""The instances behind the members of all pools, as their provisioners last listed them.

An in-memory view, rebuilt after a restart: the backends are the source of truth. Only facts
that no backend knows are added here: which instances were requested and denied, and when a
boot began.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta

from bullpen.api.kinds.exporter import Exporter
from bullpen.controllers.pass_pause import PassPauses
from bullpen.core.pools.members import Backing, Stage
from bullpen.core.targets import instances
from bullpen.core.targets.instances import Instance, Observed
from bullpen.core.targets.profiles import PROVISIONER
from bullpen.kit.clock import Clock, WallTimes
from bullpen.provisioners.base import Key, Provisioner
from bullpen.runtime.informer import key_of
from bullpen.runtime.loop import Outcome

STUCK_AFTER = timedelta(seconds=10)
"""An instance whose removal has failed for so long is reported."""

SWEEP = timedelta(minutes=1)
"""How often a backend is listed although it has reported no change."""

UNLISTED_LOOK = timedelta(seconds=5)
"""How soon a provisioner is listed again that left an instance out."""

PACE = timedelta(microseconds=20)
"""Pause between lists, per instance: a burst of changes causes few lists."""


class InstanceView:
    """What is known of every instance."""

    def __init__(
        self, provisioners: Iterable[Provisioner], *, clock: Clock, alone: bool = True
    ) -> None:
        """``alone``: no other process has provisioners, so an unlisted instance does not exist."""
        self.alone = alone
        self.provisioners = {found.name: found for found in provisioners}
        self._clock = clock
        self._started = clock.steady()
        self._wall = WallTimes(clock)
        self._seen: dict[str, dict[Key, Instance]] = {}
        """By provisioner; a missing provisioner has not answered yet."""

        self._asked: dict[str, timedelta] = {}
        """By uid of the exporter, the steady time at which its instance was requested."""

        self._tokens: dict[str, str] = {}
        """By uid, the digest of the token given to the instance."""

        self._denied: dict[str, tuple[Key, Backing]] = {}
        """By uid, why a requested instance does not exist."""

        self._begun: dict[str, int] = {}
        self._applied: dict[str, int] = {}
        """By provisioner, how many lists were begun, and the number of the last one applied."""

        self._touched: dict[str, set[Key]] = {}
        """By provisioner, the instances that changed while it was being listed."""

        self._stuck: dict[Key, tuple[timedelta, str]] = {}
        """Instances whose removal fails: since when in steady time, and why once it is long."""

        self._unlisted: dict[str, tuple[Key, timedelta]] = {}
        """By uid, what was left out of the last listing: its name, and since when."""

        self._listeners: list[Callable[[Key], None]] = []
        self._listers: list[Callable[[str], None]] = []

    def listen(self, listener: Callable[[Key], None]) -> None:
        """Call ``listener`` for every instance that appears, changes, vanishes or is denied."""
        self._listeners.append(listener)

    def provisioner_of(self, exporter: Exporter) -> Provisioner | None:
        return self.provisioners.get(exporter.metadata.annotations.get(PROVISIONER, ""))

    def looks_after(self, exporter: Exporter) -> bool:
        """Whether this process manages its instance, if it has one."""
        return self.alone or self.provisioner_of(exporter) is not None

    def is_listed(self, provisioner: str) -> bool:
        """Whether the provisioner has listed its instances."""
        return provisioner in self._seen

    def lists_begun(self, provisioner: str) -> int:
        """How many lists of a provisioner were begun so far."""
        return self._begun.get(provisioner, 0)

    def is_listed_after(self, provisioner: str, lists: int) -> bool:
        """Whether a list was applied that began after this many; if not, asks for one."""
        if self._applied.get(provisioner, 0) > lists:
            return True
        if self.lists_begun(provisioner) <= lists:
            for lister in self._listers:
                lister(provisioner)
        return False

    def listen_for_lists(self, lister: Callable[[str], None]) -> None:
        """Call ``lister`` with each provisioner of which a new list is needed."""
        self._listers.append(lister)

    @property
    def is_in_doubt(self) -> bool:
        """Whether an instance was left out of a listing a short time ago."""
        return bool(self._unlisted)

    def holders(self, key: Key) -> tuple[Instance, ...]:
        """Every instance with this name, of any provisioner."""
        return tuple(found[key] for found in self._seen.values() if key in found)

    def instance(self, exporter: Exporter) -> Instance | None:
        """The instance behind this very exporter."""
        uid = exporter.metadata.uid
        found = self.holders(key_of(exporter))
        return next((instance for instance in found if instance.owner_uid == uid), None)

    def all(self) -> Iterator[Instance]:
        for found in self._seen.values():
            yield from found.values()

    def backing(self, exporter: Exporter) -> Backing:
        """The instance behind an exporter, as sizing sees it."""
        name = exporter.metadata.annotations.get(PROVISIONER, "")
        listed = name not in self.provisioners or self.is_listed(name)
        denied = self._denied.get(exporter.metadata.uid)
        return instances.backing(
            self.instance(exporter),
            denied[1] if denied is not None else None,
            since=self._since(exporter),
            waits_for=None if listed else name,
            managed_by=None if self.looks_after(exporter) else name,
            registered_before=instances.has_registered(exporter),
            doubted=self._is_doubted(exporter.metadata.uid) and instances.is_leased(exporter),
        )

    def _is_doubted(self, uid: str) -> bool:
        # After a start, the first listing that lacks an instance has none before it.
        return uid in self._unlisted or self._is_young

    @property
    def _is_young(self) -> bool:
        return self._clock.steady() - self._started < instances.UNLISTED_MAX

    def missed(self, member: Exporter) -> None:
        """A member that had an instance has none in the listing."""
        if self._is_young:
            self._unlisted.setdefault(member.metadata.uid, (key_of(member), self._started))

    def observed(self, member: Exporter, *, retired: bool) -> Observed:
        """What is known of the instances with the name of ``member``."""
        provisioner = self.provisioner_of(member)
        denied = self._denied.get(member.metadata.uid)
        return Observed(
            instances=self.holders(key_of(member)),
            available=provisioner is not None,
            listed=provisioner is not None and self.is_listed(provisioner.name),
            refused=denied is not None and denied[1].stage is Stage.REFUSED,
            retired=retired,
        )

    def denied(self, exporter: Exporter) -> Backing | None:
        """Why the requested instance of an exporter does not exist."""
        found = self._denied.get(exporter.metadata.uid)
        return found[1] if found is not None else None

    def _since(self, exporter: Exporter) -> datetime:
        """When its boot began; if unknown, the start of this process."""
        asked, started = self.asked_at(exporter), self._wall.of(self._started)
        return asked or max(exporter.metadata.creation_timestamp or started, started)

    def asked(self, exporter: Exporter, token: str) -> None:
        """An instance is being requested, to run with this token."""
        uid = exporter.metadata.uid
        self._asked.setdefault(uid, self._clock.steady())
        self._tokens[uid] = _digest(token)

    def asked_at(self, exporter: Exporter) -> datetime | None:
        """When its instance was requested, by the wall clock as it is set now."""
        asked = self._asked.get(exporter.metadata.uid)
        return self._wall.of(asked) if asked is not None else None

    def is_stale(self, exporter: Exporter, token: str) -> bool:
        """Whether its instance was given a token that is no longer valid."""
        given = self._tokens.get(exporter.metadata.uid)
        return given is not None and bool(token) and given != _digest(token)

    def deny(self, exporter: Exporter, stage: Stage, *, reason: str, detail: str) -> None:
        """An instance was requested and does not exist: no capacity, or refused."""
        uid = exporter.metadata.uid
        # The boot of a held instance begins when it is no longer held.
        self._asked.pop(uid, None)
        key, since = key_of(exporter), self._since(exporter)
        before = self._denied.get(uid)
        self._denied[uid] = key, Backing(stage=stage, reason=reason, detail=detail, since=since)
        if before != self._denied[uid]:
            self._tell(key)

    def put(self, instance: Instance) -> None:
        """An instance exists, or has changed."""
        seen = self._seen.setdefault(instance.provisioner, {})
        self._touched.setdefault(instance.provisioner, set()).add(instance.key)
        self._denied.pop(instance.owner_uid, None)
        self._unlisted.pop(instance.owner_uid, None)
        before = seen.get(instance.key)
        if before != instance:
            self._time(before, instance)
            seen[instance.key] = instance
            self._tell(instance.key)

    def _time(self, before: Instance | None, after: Instance) -> None:
        """The boot of a held instance begins when it is no longer held."""
        if after.held:
            self._asked.pop(after.owner_uid, None)
        elif before is not None and before.held:
            self._asked[after.owner_uid] = self._clock.steady()

    def drop(self, provisioner: str, key: Key) -> None:
        """An instance is gone, so there may be capacity for a held one."""
        self._stuck.pop(key, None)
        self._touched.setdefault(provisioner, set()).add(key)
        if self._seen.get(provisioner, {}).pop(key, None) is not None:
            self._tell(key)
            self._tell_held(1)

    def not_removed(self, key: Key, problem: str) -> None:
        """A backend did not confirm the removal of an instance."""
        now = self._clock.steady()
        since, before = self._stuck.get(key, (now, ""))
        long = now - since >= STUCK_AFTER
        self._stuck[key] = since, problem if long else ""
        # Reported once: the caller that tries the removal gets the error too, and keeps its pauses.
        if long and not before:
            self._tell(key)

    def stuck(self, namespace: str) -> dict[str, str]:
        """By the name of its exporter, the instances that cannot be removed for some time."""
        return {
            key[1]: problem
            for key, (_, problem) in self._stuck.items()
            if key[0] == namespace and problem and self.holders(key)
        }

    def forget(self, exporter: Exporter) -> None:
        """The exporter was deleted."""
        for known in (self._asked, self._tokens, self._denied, self._unlisted):
            known.pop(exporter.metadata.uid, None)

    def look(self, provisioner: str) -> None:
        """A provisioner is about to be listed."""
        self._begun[provisioner] = self.lists_begun(provisioner) + 1
        self._touched[provisioner] = set()

    def replace(self, provisioner: str, listed: Iterable[Instance]) -> None:
        """Apply a list that was started with ``look``, except where newer facts are known."""
        self._applied[provisioner] = self.lists_begun(provisioner)
        before = self._seen.get(provisioner, {})
        newer = self._touched.get(provisioner, set())
        after = {instance.key: instance for instance in listed if instance.key not in newer}
        after.update((key, before[key]) for key in sorted(newer) if key in before)
        self._seen[provisioner] = after
        self._note_unlisted(before, after)
        for key in before.keys() - after.keys():
            self._stuck.pop(key, None)
        for key, instance in after.items():
            self._denied.pop(instance.owner_uid, None)
            self._time(before.get(key), instance)
        for key in sorted({*before, *after}):
            if before.get(key) != after.get(key):
                self._tell(key)
        self._tell_held(_count_up(before) - _count_up(after))

    def _note_unlisted(self, before: dict[Key, Instance], after: dict[Key, Instance]) -> None:
        """Remember for a while which instances were left out of the listing."""
        now = self._clock.steady()
        for instance in after.values():
            self._unlisted.pop(instance.owner_uid, None)
        for key in before.keys() - after.keys():
            if before[key].up:
                self._unlisted.setdefault(before[key].owner_uid, (key, now))
        for uid, (key, since) in tuple(self._unlisted.items()):
            if now - since >= instances.UNLISTED_MAX:
                del self._unlisted[uid]
                self._tell(key)

    def _tell_held(self, places: int) -> None:
        """There is capacity for this many again; the first held members by name may retry."""
        held = sorted(key for key, found in self._denied.values() if found.stage is Stage.HELD)
        for key in held[: max(0, places)]:
            self._tell(key)

    def _tell(self, key: Key) -> None:
        for listener in self._listeners:
            listener(key)


class InstanceViewReconciler:
    """Keeps the view of one provisioner current."""

    name = "instance_view"

    def __init__(self, instance_view: InstanceView, *, clock: Clock) -> None:
        self._instance_view = instance_view
        self._clock = clock
        self._pauses: PassPauses[str] = PassPauses(PACE)

    async def reconcile(self, provisioner: str) -> Outcome:
        now = self._clock.now()
        resting = self._pauses.until(provisioner, now=now)
        if resting is not None:
            return Outcome(wake_at=resting)
        self._instance_view.look(provisioner)
        found = await self._instance_view.provisioners[provisioner].observe_all()
        self._instance_view.replace(provisioner, found)
        self._pauses.begin(provisioner, len(found), now=self._clock.now())
        pause = UNLISTED_LOOK if self._instance_view.is_in_doubt else SWEEP
        return Outcome(wake_at=self._clock.now() + pause)


def watch_provisioners(instance_view: InstanceView, add: Callable[[str], None]) -> None:
    """List every provisioner once, and again whenever it reports a change or a list is needed."""
    instance_view.listen_for_lists(add)
    for name, provisioner in instance_view.provisioners.items():
        add(name)
        provisioner.listen(lambda _, name=name: add(name))  # type: ignore[misc]


def _count_up(found: dict[Key, Instance]) -> int:
    return sum(instance.up for instance in found.values())


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
