"""Who is in which pool, and who waits: kept up to date change by change.

A pass over a large pool must not cost more than what changed in it, so phases are
computed once and again only when the exporter, its instance, its token or time says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from bullpen.api.core import Secret
from bullpen.api.exporter import Exporter
from bullpen.api.exporterset import ExporterSet
from bullpen.api.lease import Lease
from bullpen.controllers.blueprints import Blueprints, owner_of
from bullpen.controllers.fleet import Fleet
from bullpen.controllers.views import Views
from bullpen.core import members, presence
from bullpen.core.members import REVISION, Member, Patience, Phase, Sighting
from bullpen.kit.clock import Clock
from bullpen.runtime.informer import Key, key_of


@dataclass(slots=True)
class _Entry:
    exporter: Exporter
    member: Member | None = None
    """None when it has to be looked at again."""

    revision: str = ""
    deleted: bool = False
    """We deleted it, and have not heard back yet."""

    labelled: int = 0
    """For which generation of its set its labels were found to be right."""


class Rosters:
    """The members of every set, by the set's uid."""

    def __init__(
        self,
        views: Views,
        fleet: Fleet,
        blueprints: Blueprints,
        *,
        clock: Clock,
        patience: Patience,
    ) -> None:
        self._views = views
        self._fleet = fleet
        self._blueprints = blueprints
        self._clock = clock
        self._patience = patience
        self._started = clock.now()
        self._entries: dict[str, dict[str, _Entry]] = defaultdict(dict)
        self._unleased: dict[str, datetime] = {}
        views.exporters.listen(self._changed)
        views.secrets.listen(self._secret_changed)
        fleet.listen(self._stir)

    def members(self, uid: str, *, revision: str, now: datetime) -> tuple[Member, ...]:
        """The members of one set as they are now."""
        found = self._entries.get(uid, {})
        return tuple(self._look(entry, revision, now) for entry in found.values())

    def exporter(self, uid: str, name: str) -> Exporter:
        return self._entries[uid][name].exporter

    def unlabelled(self, owner: ExporterSet, revision: str) -> list[Exporter]:
        """Members of the present revision that do not have the labels their set looks for."""
        selector, generation = owner.spec.selector.selector(), owner.metadata.generation
        found = []
        for entry in self._entries.get(owner.metadata.uid, {}).values():
            if entry.labelled == generation:
                continue
            meta = entry.exporter.metadata
            present = meta.labels.get(REVISION) == revision and meta.deletion_timestamp is None
            if present and not selector.matches(meta.labels):
                found.append(entry.exporter)
            else:
                entry.labelled = generation
        return found

    def deleted(self, uid: str, name: str) -> None:
        """We deleted it; until that is seen it counts as ending."""
        entry = self._entries.get(uid, {}).get(name)
        if entry is not None:
            entry.deleted, entry.member = True, None

    def _look(self, entry: _Entry, revision: str, now: datetime) -> Member:
        found = entry.member
        fresh = found is not None and entry.revision == revision
        if found is None or not fresh or (found.due is not None and found.due <= now):
            found = self._member(entry, revision, now)
            entry.member, entry.revision = found, revision
        return found

    def _member(self, entry: _Entry, revision: str, now: datetime) -> Member:
        exporter = entry.exporter
        token = self._blueprints.token(exporter)
        seen = Sighting(
            exporter=exporter,
            backing=self._fleet.backing(exporter),
            leased=self._is_leased(exporter),
            unleased_since=self._unleased.get(exporter.metadata.uid, self._started),
            stale=self._fleet.is_stale(exporter, token),
        )
        found = members.member(seen, revision=revision, now=now, patience=self._patience)
        return replace(found, phase=Phase.ENDING, due=None) if entry.deleted else found

    def _is_leased(self, exporter: Exporter) -> bool:
        """By a lease that is not over; the exporter hears of the end a moment later."""
        reference = exporter.status.lease_ref
        if reference is None:
            return False
        lease = self._views.leases.get(exporter.metadata.namespace, reference.name)
        return lease is None or not lease.status.ended

    def _changed(self, old: Exporter | None, new: Exporter | None) -> None:
        if old is not None and (before := owner_of(old)) is not None:
            self._leave(before.uid, old)
        if new is not None and (owner := owner_of(new)) is not None:
            self._entries[owner.uid][new.metadata.name] = _Entry(new)
            if old is not None and old.status.lease_ref and not new.status.lease_ref:
                self._unleased[new.metadata.uid] = self._clock.now()
        elif old is not None:
            self._unleased.pop(old.metadata.uid, None)

    def _leave(self, uid: str, exporter: Exporter) -> None:
        entries = self._entries[uid]
        entries.pop(exporter.metadata.name, None)
        if not entries:
            del self._entries[uid]

    def _secret_changed(self, old: Secret | None, new: Secret | None) -> None:
        secret = new or old
        assert secret is not None
        for reference in secret.metadata.owner_references:
            if reference.kind == Exporter.kind:
                self._stir((secret.metadata.namespace, reference.name))

    def _stir(self, key: Key) -> None:
        exporter = self._views.exporters.get(*key)
        owner = owner_of(exporter) if exporter is not None else None
        entry = self._entries.get(owner.uid, {}).get(key[1]) if owner else None
        if entry is not None:
            entry.member = None


class Queue:
    """Leases that wait for an exporter, and exporters that wait for a lease, by namespace."""

    def __init__(self, views: Views) -> None:
        self._waiting: dict[str, dict[str, Lease]] = defaultdict(dict)
        self._free: dict[str, dict[str, Exporter]] = defaultdict(dict)
        self._held: dict[str, Key] = {}
        """By the uid of a lease, the exporter that it has."""

        views.leases.listen(self._lease_changed)
        views.exporters.listen(self._exporter_changed)

    def waiting(self, namespace: str) -> Mapping[str, Lease]:
        """Leases without an exporter that have not ended, booked ones included.

        An assignment is two writes. The exporter's comes first and counts, so that no
        lease is seen both to have an exporter and to wait for one.
        """
        found = self._waiting.get(namespace, {})
        return {
            name: lease for name, lease in found.items() if lease.metadata.uid not in self._held
        }

    def free(self, namespace: str) -> tuple[Exporter, ...]:
        """Exporters that have no lease and could have one."""
        return tuple(self._free.get(namespace, {}).values())

    def _lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        lease = new or old
        assert lease is not None
        space = self._waiting[lease.metadata.namespace]
        space.pop(lease.metadata.name, None)
        if new is not None and is_waiting(new):
            space[new.metadata.name] = new

    def _exporter_changed(self, old: Exporter | None, new: Exporter | None) -> None:
        exporter = new or old
        assert exporter is not None
        space = self._free[exporter.metadata.namespace]
        space.pop(exporter.metadata.name, None)
        if old is not None and self._held.get(old.status.lease_uid) == key_of(old):
            del self._held[old.status.lease_uid]
        if new is not None and new.status.lease_uid:
            self._held[new.status.lease_uid] = key_of(new)
        if new is not None and is_free(new):
            space[new.metadata.name] = new


def is_waiting(lease: Lease) -> bool:
    return not lease.status.ended and lease.status.exporter_ref is None


def is_free(exporter: Exporter) -> bool:
    """Whether a lease might have it now or in a moment."""
    deleted = exporter.metadata.deletion_timestamp is not None
    open_ = exporter.spec.enabled and not deleted and exporter.status.lease_ref is None
    return open_ and presence.registered(exporter) and not members.spent(exporter)


def owner_key(exporter: Exporter) -> Key | None:
    """The set an exporter is a member of."""
    owner = owner_of(exporter)
    return (exporter.metadata.namespace, owner.name) if owner is not None else None
