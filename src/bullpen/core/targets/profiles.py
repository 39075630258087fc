"""What a set's members are created from: template, class and the set's own settings.

The revision identifies all of it. Members of another revision are out of date.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from bullpen.api import codec, exporterset
from bullpen.api.exporterset import SET_UID, Driver, ExporterSet, RecycleStrategy
from bullpen.api.meta import ObjectMeta, OwnerReference
from bullpen.api.paths import Document
from bullpen.api.virtualtargetclass import (
    BindingMode,
    CABundleReference,
    Images,
    ReclaimPolicy,
    Scheduling,
    VirtualTargetClass,
)
from bullpen.core.pools.members import REVISION, SINGLE_USE
from bullpen.core.targets import exporter_config

PROVISIONER = "exporterset.jumpstarter.dev/provisioner"
"""Annotation naming the provisioner of a member's instance; survives class and set."""

FINALIZER = "virtualtarget.jumpstarter.dev/instance"
"""Keeps a member's Exporter until its instance is gone."""

REVISION_LENGTH = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Everything that defines a member: one value, carried whole to provisioner and placement.

    It is created once for each pair of set and class, where its parameters are validated. Code
    between there and the driver does not look into ``parameters``.
    """

    provisioner: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    """The parameters of the class, with those of the set merged over them."""

    drivers: tuple[Driver, ...] = ()
    """The drivers of the set's template; the provisioner completes them."""

    images: Images = field(default_factory=Images)
    scheduling: Scheduling | None = None
    single_use: bool = True
    """Exit after one lease. Otherwise reset and verify between leases."""

    retain: bool = False
    """Keep disks and logs when a member is deleted."""

    on_demand: bool = False
    ca_bundle: CABundleReference | None = None
    credentials: str = ""
    """Name of the Secret for the backend; empty if there is none."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    revision: str = ""

    @property
    def requests(self) -> Mapping[str, int | str]:
        """``cpu`` and ``memory`` to account for, if the class sets them."""
        resources = self.scheduling.resources if self.scheduling else None
        return resources.requests if resources else {}


def profile(owner: ExporterSet, found: VirtualTargetClass) -> Profile:
    """What members of ``owner`` are created from, given its class."""
    spec, cls = owner.spec, found.spec
    secret = cls.credentials_secret_ref
    return Profile(
        provisioner=cls.provisioner,
        parameters=exporter_config.merged(cls.parameters, spec.parameters),
        drivers=spec.template.spec.drivers,
        images=exporter_config.merged_images(cls.images, spec.images),
        scheduling=cls.scheduling,
        single_use=spec.recycle_strategy is RecycleStrategy.EXIT_AND_REPLACE,
        retain=cls.reclaim_policy is ReclaimPolicy.RETAIN,
        on_demand=cls.binding_mode is BindingMode.WAIT_FOR_FIRST_CONSUMER,
        ca_bundle=cls.ca_bundle_config_map_ref,
        credentials=secret.name if secret else "",
        labels=labels(owner),
        annotations=spec.template.metadata.annotations,
        revision=_revision(owner, found),
    )


def labels(owner: ExporterSet) -> dict[str, str]:
    """The labels of every member, whatever its revision: leases select members by these."""
    meta = owner.metadata
    named = exporterset.member_labels(meta.name, owner.spec.template.metadata.labels)
    return {**named, SET_UID: meta.uid}


def member_metadata(owner: ExporterSet, name: str, made_from: Profile) -> ObjectMeta:
    """The metadata of a new member."""
    single = {SINGLE_USE: "true"} if made_from.single_use else {}
    return ObjectMeta(
        name=name,
        namespace=owner.metadata.namespace,
        labels={**made_from.labels, REVISION: made_from.revision},
        annotations={**made_from.annotations, PROVISIONER: made_from.provisioner, **single},
        finalizers=(FINALIZER,),
        owner_references=(
            OwnerReference(
                api_version=owner.api_version,
                kind=owner.kind,
                name=owner.metadata.name,
                uid=owner.metadata.uid,
                controller=True,
                block_owner_deletion=True,
            ),
        ),
    )


def _revision(owner: ExporterSet, found: VirtualTargetClass) -> str:
    """A digest of everything that defines a member; the number of members does not count."""
    spec = codec.encode(found.spec)
    spec.pop("bindingMode", None)
    given: Document = {
        "class": spec,
        "template": codec.encode(owner.spec.template),
        "parameters": owner.spec.parameters,
        "images": codec.encode(owner.spec.images) if owner.spec.images else None,
        "recycle": owner.spec.recycle_strategy.value,
    }
    text = json.dumps(given, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:REVISION_LENGTH]
