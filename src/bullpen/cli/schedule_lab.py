"""The lab that ``bullpen schedule`` answers for: read from the service, or from a snapshot."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
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
from bullpen.api.kinds.lease import Lease
from bullpen.api.paths import Document
from bullpen.api.resources import RESOURCES
from bullpen.cli import manifests
from bullpen.cli.connection import Api
from bullpen.cli.get import list_all
from bullpen.cli.options import default_data_directory
from bullpen.core.claims.allocator import Allocator
from bullpen.core.claims.criteria import CriteriaIndex
from bullpen.core.claims.explanation import Explanation, explain
from bullpen.core.claims.inventory import Use
from bullpen.core.claims.inventory_index import InventoryIndex
from bullpen.core.claims.lab_inventory import (
    allowed_devices,
    class_definition,
    inventory_of,
    terms_of,
)
from bullpen.core.leases.access import policies
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
    Lease,
)
"""What a snapshot holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """One namespace, and the claims to answer."""

    now: datetime
    allocator: Allocator
    uses: tuple[Use, ...]
    clients: tuple[Client, ...]
    exporters: tuple[Exporter, ...]
    policies: tuple[ExporterAccessPolicy, ...]
    claims: tuple[DeviceClaim, ...]
    """The claims that the files have."""

    stored: tuple[DeviceClaim, ...]
    """Claims that the lab has, without those of the same name in the files."""

    def allowed(self, claim: DeviceClaim) -> int:
        wanted = claim.spec.client_ref.name
        labels = {client.metadata.name: client.metadata.labels for client in self.clients}
        return allowed_devices(
            self.allocator.index,
            policies(self.policies),
            client=labels.get(wanted),
            labels={e.metadata.name: e.metadata.labels for e in self.exporters},
            duration=claim.spec.duration,
        )

    def explain(self, claim: DeviceClaim, waited: timedelta, budget: int) -> Explanation:
        return explain(
            self.allocator,
            terms_of(claim.spec),
            self.uses,
            now=self.now,
            waited=waited,
            allowed=self.allowed(claim),
            budget=budget,
        )


def read_lab(
    given: list[Document], inventory: str, at: str, data: str | None, namespace: str
) -> Lab:
    now = parse_time(at)
    if inventory:
        found = [document for _, document in manifests.documents((inventory,))]
        now = now or _snapshot_time(inventory)
    else:
        found = live_objects(data, namespace)
    documents = [_checked(document) for document in (*found, *given)]
    claims = _of(DeviceClaim, documents[len(found) :])
    names = {claim.metadata.name for claim in claims}
    stored = [c for c in _of(DeviceClaim, documents) if c.metadata.name not in names]
    if not claims and not stored:
        raise BadRequest("no DeviceClaim to answer; name a file that has one with -f")
    exporters = _of(Exporter, documents)
    lab = inventory_of(exporters, _of(Lease, documents), _of(DevicePool, documents))
    index = InventoryIndex(lab)
    classes = [class_definition(found) for found in _of(DeviceClass, documents)]
    return Lab(
        now=now or SystemClock().now(),
        allocator=Allocator(index, CriteriaIndex(index, classes)),
        uses=lab.uses,
        clients=_of(Client, documents),
        exporters=exporters,
        policies=_of(ExporterAccessPolicy, documents),
        claims=claims or tuple(stored),
        stored=tuple(stored) if claims else (),
    )


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
