"""What a set's members are created from: template, class and the set's own settings.

The revision identifies everything that only a new member can have: all fields of a profile
except those that are excluded by name. Members of another revision are out of date. Labels
and annotations are changed in place instead.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta

import msgspec

from bullpen.api import codec
from bullpen.api.exporter_template import Driver, Target
from bullpen.api.fields import Struct
from bullpen.api.kinds import exporterset
from bullpen.api.kinds.core import Secret
from bullpen.api.kinds.exporterset import SET_UID, ExporterSet, RecycleStrategy
from bullpen.api.kinds.virtualdisk import DiskImage, VirtualDisk
from bullpen.api.kinds.virtualtarget import (
    Identity,
    TargetDisk,
    TargetRecycleStrategy,
    VirtualTarget,
)
from bullpen.api.kinds.virtualtargetclass import (
    BindingMode,
    CABundleReference,
    CredentialRotation,
    Images,
    ReclaimPolicy,
    Scheduling,
    VirtualTargetClass,
)
from bullpen.api.meta import ObjectMeta, OwnerReference
from bullpen.api.paths import Document
from bullpen.core.pools.members import REVISION, SINGLE_USE
from bullpen.core.targets import exporter_config
from bullpen.kit import quantities

PROVISIONER = "exporterset.jumpstarter.dev/provisioner"
"""Annotation naming the provisioner of a member's instance; survives class and set."""

FINALIZER = "virtualtarget.jumpstarter.dev/instance"
"""Keeps a member's Exporter until its instance is gone."""

TEMPLATE_KEYS = "exporterset.jumpstarter.dev/template-keys"
"""Annotation of a member: the keys of the labels and annotations it has from its template."""

REVISION_LENGTH = 10

_IDENTITIES = uuid.UUID("6f0d4f0e-31b1-5d0c-9f43-5b2c8a5b7a10")
"""Namespace of the UUIDs of machines."""

NOT_IN_REVISION = frozenset(
    {
        "labels",
        "annotations",
        "boot_timeout",
        "on_demand",
        "revision",
        "start_revision",
        "keep",
        "lasting",
        "identity",
        "disks",
        "files",
    }
)
"""Fields of a profile that change no member, change it in place, or that no whole set has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileDisk:
    """A disk of a lasting machine."""

    name: str
    """Identifies it to the machine: the same as long as the disk is the same."""

    key: tuple[str, str] = ("", "")
    """Namespace and name of its VirtualDisk; empty for an image."""

    uid: str = ""
    size_bytes: int = 0
    """The size it has or is to get."""

    image: DiskImage | None = None
    """An image that is read only."""

    source: DiskImage | None = None
    """The first content of a VirtualDisk, for placements where the machine's own place makes it."""


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

    targets: tuple[Target, ...] | None = None
    """Several targets behind one exporter, see ``each_target``; None for one."""

    images: Images = field(default_factory=Images)
    scheduling: Scheduling | None = None
    single_use: bool = True
    """Exit after one lease. Otherwise reset and verify between leases."""

    retain: bool = False
    """Keep disks and logs when a member is deleted."""

    keep: bool = False
    """A lasting machine: on from its start, and left as it is between leases."""

    lasting: bool = False
    """The machine of a lasting target: a provisioner that can keep it when it is stopped does."""

    identity: Identity | None = None
    """Of one machine; None in the profile of a whole set."""

    disks: tuple[ProfileDisk, ...] = ()
    """Lasting disks and shared images, in boot order."""

    on_demand: bool = False
    boot_timeout: timedelta = timedelta(0)
    """How long it may take to register; 0 for the service's own limit."""

    ca_bundle: CABundleReference | None = None
    credentials: str = ""
    """Name of the Secret for the exporter; empty if there is none."""

    provider: str = ""
    """Name of the ProviderConfig; empty if its provisioner needs none."""

    contents: str | None = None
    """Digest of the contents of Secret and CA bundle for which members are replaced."""

    files: str | None = None
    """Digest of the contents of the Secret that running members get in place."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    revision: str = ""
    start_revision: str = ""
    """Of a lasting machine: digest of what it gets only when it starts."""

    @property
    def requests(self) -> Mapping[str, int | str]:
        """``cpu`` and ``memory`` to account for, if the class sets them."""
        resources = self.scheduling.resources if self.scheduling else None
        return resources.requests if resources else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The contents of the objects that a class refers to; None for what does not exist."""

    secret: Secret | None = None
    ca_bundle: str | None = None


def profile(
    owner: ExporterSet, found: VirtualTargetClass, contents: Contents | None = None
) -> Profile:
    """What members of ``owner`` are created from, given its class."""
    spec, cls = owner.spec, found.spec
    secret = cls.credentials_secret_ref
    given, rotation = contents or Contents(), cls.credential_rotation
    in_place = rotation is CredentialRotation.IN_PLACE
    replacing = {
        # A config is read when the exporter starts, so a CA bundle cannot be changed in place.
        "caBundle": None if rotation is CredentialRotation.LEAVE else given.ca_bundle,
        "secret": _secret(given.secret) if rotation is CredentialRotation.REPLACE else None,
    }
    made = Profile(
        provisioner=cls.provisioner,
        parameters=exporter_config.merged(cls.parameters, spec.parameters),
        drivers=spec.template.spec.drivers,
        targets=spec.template.spec.targets or None,
        images=exporter_config.merged_images(cls.images, spec.images),
        scheduling=cls.scheduling,
        single_use=spec.recycle_strategy is RecycleStrategy.EXIT_AND_REPLACE,
        retain=cls.reclaim_policy is ReclaimPolicy.RETAIN,
        boot_timeout=cls.boot_timeout,
        on_demand=cls.binding_mode is BindingMode.WAIT_FOR_FIRST_CONSUMER,
        ca_bundle=cls.ca_bundle_config_map_ref,
        credentials=secret.name if secret else "",
        contents=digest(replacing) if any(replacing.values()) else None,
        files=_secret(given.secret) if in_place else None,
        provider=cls.provider_config_ref.name if cls.provider_config_ref else "",
        labels=labels(owner),
        annotations=spec.template.metadata.annotations,
    )
    return replace(made, revision=_revision(made))


def each_target(made: Profile) -> tuple[Profile, ...]:
    """The profile of each of several targets, in their order; the machines differ in identity."""
    return tuple(
        replace(
            made,
            parameters=exporter_config.merged(made.parameters, target.parameters),
            drivers=target.drivers,
            targets=None,
            identity=identity(f"{made.identity.uuid}/{target.name}") if made.identity else None,
        )
        for target in made.targets or ()
    )


def _secret(found: Secret | None) -> str | None:
    """A digest of a Secret, which tells nothing about it: its uid is known to the service only.

    Revisions are labels. A digest of the data alone would let readers check their guesses.
    """
    if found is None:
        return None
    return digest({"uid": found.metadata.uid, "data": dict(found.data)})


def target_profile(
    target: VirtualTarget,
    found: VirtualTargetClass,
    attached: Mapping[str, VirtualDisk | None],
    identity: Identity,
) -> Profile:
    """What the machine of a lasting target runs with, given its class and its disks.

    Labels and annotations are not part of the revision: they are changed while it runs.
    """
    spec, cls = target.spec, found.spec
    secret = cls.credentials_secret_ref
    made = Profile(
        provisioner=cls.provisioner,
        parameters=exporter_config.merged(cls.parameters, spec.parameters),
        drivers=spec.drivers,
        images=exporter_config.merged_images(cls.images, None),
        scheduling=cls.scheduling,
        single_use=False,
        keep=spec.recycle_strategy is TargetRecycleStrategy.KEEP,
        lasting=True,
        boot_timeout=cls.boot_timeout,
        identity=identity,
        disks=tuple(_profile_disk(disk, attached) for disk in spec.disks),
        ca_bundle=cls.ca_bundle_config_map_ref,
        credentials=secret.name if secret else "",
        provider=cls.provider_config_ref.name if cls.provider_config_ref else "",
        labels=target.metadata.labels,
    )
    cls_spec = codec.encode(cls)
    for unused in ("bindingMode", "bootTimeout", "credentialRotation", "reclaimPolicy"):
        cls_spec.pop(unused, None)
    given: Document = {
        "class": cls_spec,
        "parameters": spec.parameters,
        "drivers": [codec.encode(driver) for driver in spec.drivers],
        "recycle": spec.recycle_strategy.value,
        "disks": [codec.encode(disk) for disk in spec.disks],
    }
    boot_disk = given["disks"][:1]
    start_revision = digest({**given, "disks": boot_disk})
    return replace(made, revision=digest(given), start_revision=start_revision)


def identity(uid: str) -> Identity:
    """The identity of a machine, from the uid of its target or member: the same at every start."""
    digest = hashlib.sha256(uid.encode()).digest()
    # The second bit of the first byte says that the address is administered locally.
    mac = ":".join(f"{byte:02x}" for byte in (0x02, *digest[:5]))
    return Identity(
        uuid=str(uuid.uuid5(_IDENTITIES, uid)), mac=mac, serial=f"BP{digest[5:13].hex().upper()}"
    )


def _profile_disk(disk: TargetDisk, attached: Mapping[str, VirtualDisk | None]) -> ProfileDisk:
    if disk.image is not None:
        return ProfileDisk(name=f"i{digest(codec.encode(disk.image))}", image=disk.image)
    found = attached.get(disk.virtual_disk)
    if found is None:
        return ProfileDisk(name="missing")
    meta = found.metadata
    sizes = (size for size in (found.spec.size, found.status.capacity) if size != "")
    return ProfileDisk(
        name=f"d{digest({'uid': meta.uid})}",
        key=(meta.namespace, meta.name),
        uid=meta.uid,
        size_bytes=max((quantities.parse(size).whole() for size in sizes), default=0),
        source=found.spec.source.image if found.spec.source else None,
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
        annotations={
            **made_from.annotations,
            TEMPLATE_KEYS: _template_keys(owner),
            PROVISIONER: made_from.provisioner,
            **single,
        },
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


def updated_in_place(owner: ExporterSet, meta: ObjectMeta) -> ObjectMeta:
    """The metadata of a member with the labels and annotations of its set's template.

    What the template no longer has is removed; keys that others have set stay.
    """
    template = owner.spec.template.metadata
    before = _keys_before(meta)
    kept_labels = {k: v for k, v in meta.labels.items() if k not in before.labels}
    kept = {k: v for k, v in meta.annotations.items() if k not in before.annotations}
    return replace(
        meta,
        labels={**kept_labels, **labels(owner)},
        annotations={**kept, **template.annotations, TEMPLATE_KEYS: _template_keys(owner)},
    )


class _Keys(msgspec.Struct, frozen=True):
    labels: frozenset[str] = frozenset()
    annotations: frozenset[str] = frozenset()


def _keys_before(meta: ObjectMeta) -> _Keys:
    """What a member has from an earlier template; nothing is known if others edited the record."""
    try:
        return msgspec.json.decode(meta.annotations.get(TEMPLATE_KEYS, "{}"), type=_Keys)
    except msgspec.DecodeError:
        return _Keys()


def _template_keys(owner: ExporterSet) -> str:
    template = owner.spec.template.metadata
    keys = {"labels": sorted(template.labels), "annotations": sorted(template.annotations)}
    return json.dumps(keys, separators=(",", ":"))


def _revision(made: Profile) -> str:
    """A digest of every field of the profile that only a new member can have."""
    given = {
        item.name: _plain(getattr(made, item.name))
        for item in fields(made)
        if item.name not in NOT_IN_REVISION
    }
    return digest(_without_empty(given))


def digest(given: object) -> str:
    """A short digest of a document, which identifies its content."""
    text = json.dumps(given, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:REVISION_LENGTH]


def _plain(value: object) -> object:
    """A value of a profile as JSON has it."""
    if isinstance(value, Struct):
        return codec.encode(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _without_empty(value: object) -> object:
    """``value`` without empty maps and absent values: to write them out changes nothing."""
    if isinstance(value, dict):
        found = {key: _without_empty(item) for key, item in value.items()}
        return {key: item for key, item in found.items() if item is not None and item != {}}
    if isinstance(value, list):
        return [_without_empty(item) for item in value]
    return value
