"""The members of every pool, updated change by change.

A pass over a large pool must cost no more than what changed in it, so a phase is computed
once, and again only when the exporter, its instance, its token or the time requires it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from bullpen.api.kinds.core import Secret
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.exporterset import SET_UID, ExporterSet
from bullpen.controllers.labs import Labs
from bullpen.controllers.targets.blueprints import Blueprints, owner_of
from bullpen.controllers.targets.instance_view import InstanceView
from bullpen.controllers.views import Views
from bullpen.core.exporters import presence
from bullpen.core.pools import members
from bullpen.core.pools.member_index import MemberIndex
from bullpen.core.pools.members import REVISION, Member, Patience, Phase, Sighting
from bullpen.core.targets import profiles
from bullpen.kit.clock import Clock, WallTimes
from bullpen.runtime.informer import Key


@dataclass(slots=True)
class _Entry:
    exporter: Exporter
    deleted: bool = False
    """Deleted by this process; the watch has not confirmed it yet."""


@dataclass(slots=True)
class _MemberView:
    """The members of one set."""

    entries: dict[str, _Entry] = field(default_factory=dict)
    member_index: MemberIndex = field(default_factory=MemberIndex)
    """The state at the last evaluation: it does not change while a pass decides."""

    changed: dict[str, None] = field(default_factory=dict)
    """Members to evaluate again, in order of change."""

    revision: str = ""
    boot_timeout: timedelta = timedelta(0)
    removals: frozenset[str] = frozenset()
    """Uids of members that were removed by name."""

    unchecked: dict[str, None] = field(default_factory=dict)
    """Members whose labels have not been checked."""

    generation: int = 0
    """Generation of the set whose labels were checked."""

    epoch: datetime | None = None
    """How the wall clock was set at the last evaluation."""

    def put(self, exporter: Exporter) -> None:
        name = exporter.metadata.name
        self.entries[name] = _Entry(exporter)
        self.changed[name] = self.unchecked[name] = None

    def remove(self, name: str) -> None:
        self.entries.pop(name, None)
        self.changed[name] = None
        self.unchecked.pop(name, None)

    def due(self, revision: str, now: datetime, epoch: datetime) -> dict[str, None]:
        """Members to evaluate now; ``epoch`` changes when the wall clock is set."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.changed |= dict.fromkeys(m.name for m in self.member_index.unusual)
        if revision != self.revision:
            return {**self.changed, **dict.fromkeys(self.entries)}
        late = (m.name for m in self.member_index.unusual if m.due is not None and m.due <= now)
        return {**self.changed, **dict.fromkeys(late)}


class MemberViews:
    """The members of every set, by the set's uid."""

    def __init__(
        self,
        views: Views,
        labs: Labs,
        instance_view: InstanceView,
        blueprints: Blueprints,
        *,
        clock: Clock,
        patience: Patience,
    ) -> None:
        self._views = views
        self._labs = labs
        self._instance_view = instance_view
        self._blueprints = blueprints
        self._clock = clock
        self._patience = patience
        self._started = clock.steady()
        self._wall = WallTimes(clock)
        self._by_uid: dict[str, _MemberView] = defaultdict(_MemberView)
        self._unleased: dict[str, timedelta] = {}
        """By uid, the steady time at which a member's lease ended."""

        self._lost: dict[str, timedelta] = {}
        """By uid, the steady time at which a member that was ready no longer was."""

        views.exporters.listen(self._changed)
        views.secrets.listen(self._secret_changed)
        instance_view.listen(self._stir)

    def members(
        self,
        uid: str,
        *,
        revision: str,
        boot_timeout: timedelta = timedelta(0),
        removals: frozenset[str] = frozenset(),
        now: datetime,
    ) -> MemberIndex:
        """The current members of one set; unchanged until the next call.

        ``boot_timeout`` is that of its class, 0 for the service's own; ``removals`` has the uids
        of the members that were removed by name.
        """
        view = self._by_uid.get(uid)
        if view is None:
            return MemberIndex()
        if boot_timeout != view.boot_timeout:
            view.boot_timeout = boot_timeout
            view.changed |= dict.fromkeys(view.entries)
        if removals != view.removals:
            moved = removals ^ view.removals
            view.removals = removals
            view.changed |= {
                name: None
                for name, entry in view.entries.items()
                if entry.exporter.metadata.uid in moved
            }
        for name in view.due(revision, now, self._wall.epoch):
            entry = view.entries.get(name)
            if entry is None:
                view.member_index.remove(name)
            else:
                view.member_index.put(self._member(entry, view, revision, now))
        view.changed.clear()
        view.revision = revision
        return view.member_index

    def exporters(self, uid: str) -> tuple[Exporter, ...]:
        """The members of one set."""
        view = self._by_uid.get(uid)
        return tuple(entry.exporter for entry in view.entries.values()) if view else ()

    def exporter(self, uid: str, name: str) -> Exporter:
        return self._by_uid[uid].entries[name].exporter

    def unlabelled(self, owner: ExporterSet, revision: str) -> list[Exporter]:
        """Members without the uid of their set, and current ones that differ from its template."""
        view = self._by_uid.get(owner.metadata.uid)
        if view is None:
            return []
        if view.generation != owner.metadata.generation:
            view.generation = owner.metadata.generation
            view.unchecked = dict.fromkeys(view.entries)
        found = []
        for name in tuple(view.unchecked):
            exporter = view.entries[name].exporter
            meta = exporter.metadata
            unknown = meta.labels.get(SET_UID) != owner.metadata.uid
            current = meta.labels.get(REVISION) == revision
            bare = unknown or (current and profiles.updated_in_place(owner, meta) != meta)
            if bare and meta.deletion_timestamp is None:
                found.append(exporter)
            else:
                del view.unchecked[name]
        return found

    def deleted(self, uid: str, name: str) -> None:
        """This process deleted the member; until the watch confirms it, it counts as ending."""
        view = self._by_uid.get(uid)
        if view is not None and name in view.entries:
            view.entries[name].deleted = True
            view.changed[name] = None

    def _member(self, entry: _Entry, view: _MemberView, revision: str, now: datetime) -> Member:
        exporter = entry.exporter
        unleased = self._unleased.get(exporter.metadata.uid)
        lost = self._lost.get(exporter.metadata.uid)
        token = self._blueprints.token(exporter)
        seen = Sighting(
            exporter=exporter,
            backing=self._instance_view.backing(exporter),
            leased=self._is_leased(exporter),
            unleased_since=self._wall.of(self._started if unleased is None else unleased),
            reset_at=None if unleased is None else self._wall.of(unleased),
            offline_since=None if lost is None else self._wall.of(lost),
            leaving=exporter.metadata.uid in view.removals,
            stale=self._instance_view.is_stale(exporter, token),
        )
        boot_max = view.boot_timeout or self._patience.boot_max
        patience = replace(self._patience, boot_max=boot_max)
        found = members.member(seen, revision=revision, now=now, patience=patience)
        return replace(found, phase=Phase.ENDING, due=None) if entry.deleted else found

    def _is_leased(self, exporter: Exporter) -> bool:
        """Whether an open lease holds it; the exporter is told of the end a moment later."""
        reference = exporter.status.lease_ref
        if reference is None:
            return False
        lease = self._labs.leases.get(exporter.metadata.namespace, reference.name)
        return lease is None or not lease.status.ended

    def _changed(self, old: Exporter | None, new: Exporter | None) -> None:
        before = owner_of(old) if old is not None else None
        after = owner_of(new) if new is not None else None
        moved = before is not None and (after is None or after.uid != before.uid)
        if old is not None and before is not None and moved:
            self._leave(before.uid, old)
        if new is not None and after is not None:
            self._by_uid[after.uid].put(new)
            if old is not None and old.status.lease_ref and not new.status.lease_ref:
                self._unleased[new.metadata.uid] = self._clock.steady()
            self._note_readiness(new)
        elif old is not None:
            self._unleased.pop(old.metadata.uid, None)
            self._lost.pop(old.metadata.uid, None)

    def _note_readiness(self, exporter: Exporter) -> None:
        """Note when a member is no longer ready, or was already when this process first saw it."""
        if presence.online(exporter) and presence.registered(exporter):
            self._lost.pop(exporter.metadata.uid, None)
        elif members.was_ready(exporter):
            self._lost.setdefault(exporter.metadata.uid, self._clock.steady())

    def _leave(self, uid: str, exporter: Exporter) -> None:
        view = self._by_uid[uid]
        view.remove(exporter.metadata.name)
        if not view.entries:
            del self._by_uid[uid]

    def _secret_changed(self, old: Secret | None, new: Secret | None) -> None:
        secret = new or old
        assert secret is not None
        for reference in secret.metadata.owner_references:
            if reference.kind == Exporter.kind:
                self._stir((secret.metadata.namespace, reference.name))

    def _stir(self, key: Key) -> None:
        exporter = self._views.exporters.get(*key)
        owner = owner_of(exporter) if exporter is not None else None
        view = self._by_uid.get(owner.uid) if owner else None
        if view is not None:
            view.changed[key[1]] = None


def is_free(exporter: Exporter) -> bool:
    """Whether a lease might be assigned to it now or soon."""
    deleted = exporter.metadata.deletion_timestamp is not None
    open_ = exporter.spec.enabled and not deleted and exporter.status.lease_ref is None
    return open_ and presence.registered(exporter) and not members.spent(exporter)


def owner_key(exporter: Exporter) -> Key | None:
    """The set an exporter is a member of."""
    owner = owner_of(exporter)
    return (exporter.metadata.namespace, owner.name) if owner is not None else None
