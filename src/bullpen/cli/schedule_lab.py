"""The lab that ``bullpen schedule`` answers for: read from the service, or from a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar

from bullpen.api import codec, yaml
from bullpen.api.fields import Kind
from bullpen.api.kinds.accesspolicy import ExporterAccessPolicy
from bullpen.api.kinds.client import Client
from bullpen.api.kinds.deviceclaim import DeviceClaim
from bullpen.api.kinds.deviceclass import DeviceClass
from bullpen.api.kinds.devicepool import DevicePool
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.exporterset import ExporterSet
from bullpen.api.kinds.lease import Lease
from bullpen.api.kinds.providerconfig import ProviderConfig
from bullpen.api.kinds.virtualtargetclass import VirtualTargetClass
from bullpen.api.meta import ConditionStatus
from bullpen.api.paths import Document
from bullpen.api.resources import RESOURCES
from bullpen.cli import manifests
from bullpen.cli.connection import Api
from bullpen.cli.get import list_all
from bullpen.cli.options import default_data_directory
from bullpen.core import conditions
from bullpen.core.claims.claim_lab import ClaimDecision, ClaimLab, offered_inventory
from bullpen.core.claims.claim_pass import decide_claims, dry_run, why_not_devices
from bullpen.core.claims.explanation import Explanation
from bullpen.core.claims.work import PassBudget
from bullpen.core.lab_index import LabIndex
from bullpen.core.leases import lifecycle
from bullpen.core.leases.access import policies
from bullpen.core.leases.lease_group import claim_uid
from bullpen.core.leases.quotas import UNLIMITED
from bullpen.core.leases.requests import Bookings, Request, Supply, Want
from bullpen.core.matcher import matcher_of
from bullpen.core.pools.forecast import supply_of
from bullpen.core.pools.provider_slots import with_slots
from bullpen.errors import BadRequest, Invalid
from bullpen.kit import durations, times
from bullpen.kit.clock import SystemClock

TIME = "device.jumpstarter.dev/snapshot-time"
"""Annotation of a snapshot with the time at which it was taken."""

_PARTS: tuple[type[Kind], ...] = (
    Client,
    DeviceClaim,
    DeviceClass,
    DevicePool,
    Exporter,
    ExporterAccessPolicy,
    ExporterSet,
    Lease,
    ProviderConfig,
    VirtualTargetClass,
)
"""What a snapshot holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """One namespace as the service sees it, and the claims to answer."""

    now: datetime
    whole: ClaimLab
    """With the claims that wait, those of the files in place of stored ones of the same name."""

    claims: tuple[DeviceClaim, ...]
    """The claims to answer: those of the files, or all that wait."""

    def explain(self, claim: DeviceClaim, waited: timedelta, budget: int) -> Explanation:
        each = PassBudget(budget)
        return dry_run(self.whole, claim, now=self.now, waited=waited, budget=each)

    def why_not(self, claim: DeviceClaim, devices: Sequence[str]) -> dict[str, tuple[str, ...]]:
        return why_not_devices(self.whole, claim, devices, now=self.now)

    def devices(self) -> tuple[str, ...]:
        """The names of all devices, in the order in which they are preferred."""
        return tuple(d.name for d in offered_inventory(self.whole, self.now).devices)

    def decide(self, budget: int) -> tuple[ClaimDecision, ...]:
        """Decide all waiting claims in one pass."""
        return decide_claims(self.whole, now=self.now, budget=budget)


def read_lab(
    given: list[Document], inventory: str, at: str, data: str | None, namespace: str
) -> Lab:
    now = parse_time(at)
    if inventory:
        found = [document for _, document in manifests.documents((inventory,))]
        now = now or _snapshot_time(inventory)
    else:
        found = live_objects(data, namespace)
    now = now or SystemClock().now()
    documents = [_checked(document) for document in (*found, *given)]
    claims = tuple(_asked(claim, now) for claim in _of(DeviceClaim, documents[len(found) :]))
    names = {claim.metadata.name for claim in claims}
    stored = [c for c in _of(DeviceClaim, documents[: len(found)]) if c.metadata.name not in names]
    waiting = tuple(_asked(c, now) for c in stored if not c.status.ended and not c.status.members)
    if not claims and not waiting:
        raise BadRequest("no DeviceClaim to answer; name a file that has one with -f")
    served = tuple(claim for claim in stored if claim.status.members and not claim.status.ended)
    whole = _claim_lab(documents, (*claims, *waiting), served, now)
    return Lab(now=now, whole=whole, claims=claims or waiting)


def _asked(claim: DeviceClaim, now: datetime) -> DeviceClaim:
    """A claim that waits; one that does not exist is made now."""
    meta = claim.metadata
    meta = replace(
        meta, uid=meta.uid or meta.name, creation_timestamp=meta.creation_timestamp or now
    )
    return replace(claim, metadata=meta)


def _claim_lab(
    documents: list[Document],
    claims: tuple[DeviceClaim, ...],
    served: tuple[DeviceClaim, ...],
    now: datetime,
) -> ClaimLab:
    """What the controller of claims would decide on, except for limits in the settings."""
    exporters, clients = _of(Exporter, documents), _of(Client, documents)
    leases = tuple(lease for lease in _of(Lease, documents) if not lease.status.ended)
    index = LabIndex()
    for exporter in exporters:
        index.put_exporter(exporter.metadata.name, exporter, connected=_connected(exporter))
    for lease in leases:
        index.put_lease(lease.metadata.name, None, lease, late=False)
    labels = {client.metadata.name: client.metadata.labels for client in clients}
    booked = tuple(_request(x, labels, now) for x in leases if _is_booked(x, now))
    return ClaimLab(
        claims=claims,
        # The service would refuse claims of a client that does not exist.
        clients={claim.spec.client_ref.name: {} for claim in claims} | labels,
        exporters=exporters,
        offers=index.offers,
        leases=leases,
        classes=_of(DeviceClass, documents),
        pools=_of(DevicePool, documents),
        policies=policies(_of(ExporterAccessPolicy, documents)),
        quotas=UNLIMITED,
        active=index.active_by_client(),
        handicaps=index.fair_share.handicaps(labels, now=now),
        bookings=Bookings(requests=booked, ends=index.ends, now=now) if booked else None,
        supplies=_supplies(documents),
        served=served,
    )


def _connected(exporter: Exporter) -> bool:
    online = conditions.get(exporter.status.conditions, "Online")
    return online is None or online.status is ConditionStatus.TRUE


def _is_booked(lease: Lease, now: datetime) -> bool:
    begin = lifecycle.begins_at(lease.spec)
    return lease.status.exporter_ref is None and begin is not None and begin > now


def _request(lease: Lease, clients: Mapping[str, Mapping[str, str]], now: datetime) -> Request:
    """A booked lease as the scheduler sees it."""
    spec = lease.spec
    return Request(
        name=lease.metadata.name,
        client=spec.client_ref.name,
        client_labels=clients.get(spec.client_ref.name),
        wants=(Want(matcher=matcher_of(spec)),),
        since=lease.metadata.creation_timestamp or now,
        begin=lifecycle.begins_at(spec),
        allow_disabled=spec.allow_disabled,
        duration=lifecycle.lasts(lease, now=now),
        claim=claim_uid(lease),
    )


def _supplies(documents: list[Document]) -> tuple[Supply, ...]:
    """What the ExporterSets could start, on the free slots of their providers."""
    sets = _of(ExporterSet, documents)
    found = tuple(supply for owner in sets if (supply := supply_of(owner)) is not None)
    configs = {config.metadata.name: config for config in _of(ProviderConfig, documents)}
    made_of = _of(VirtualTargetClass, documents)
    refs = ((c.metadata.name, c.spec.provider_config_ref) for c in made_of)
    return with_slots(found, sets, configs, {n: ref.name for n, ref in refs if ref is not None})


def live_objects(data: str | None, namespace: str) -> list[Document]:
    api = Api.from_data(Path(data) if data else default_data_directory())
    found: list[Document] = []
    for kind in _PARTS:
        resource = RESOURCES.of(kind)
        where = namespace if resource.namespaced else None
        meta = {"apiVersion": resource.api_version, "kind": resource.kind}
        found += ({**meta, **item} for item in list_all(api, resource, where))
    return found


def _checked(document: Document) -> Document:
    """The document with its defaults; raises ``Invalid`` with the paths of what is wrong."""
    resource = RESOURCES.of_kind(str(document.get("apiVersion")), str(document.get("kind")))
    if resource is None:
        kind, version = document.get("kind"), document.get("apiVersion")
        raise BadRequest(f"no kind {kind!r} in version {version!r} is known here")
    complete = resource.default(document)
    causes = resource.validate(complete)
    if causes:
        name = (document.get("metadata") or {}).get("name", "")
        said = "; ".join(f"{cause.field}: {cause.message}" for cause in causes)
        raise Invalid(f"{resource.kind} {name} is invalid: {said}")
    return complete


K = TypeVar("K", bound=Kind)


def _of(kind: type[K], documents: Iterable[Document]) -> tuple[K, ...]:
    return tuple(
        codec.decode(kind, document)
        for document in documents
        if (document["apiVersion"], document["kind"]) == (kind.api_version, kind.kind)
    )


def _snapshot_time(path: str) -> datetime | None:
    """The time of a snapshot; None if the file is a plain list of objects."""
    if path == "-" or not Path(path).is_file():
        return None
    loaded = yaml.load_manifests(Path(path).read_bytes())
    meta = (loaded[0].get("metadata") or {}) if loaded and isinstance(loaded[0], dict) else {}
    return parse_time(str((meta.get("annotations") or {}).get(TIME, "")))


def parse_time(written: str) -> datetime | None:
    if not written:
        return None
    try:
        return times.parse(written)
    except ValueError as error:
        raise BadRequest(str(error)) from None


def parse_duration(written: str) -> timedelta:
    try:
        return durations.parse(written)
    except ValueError as error:
        raise BadRequest(str(error)) from None
