"""Parameters of EC2 instances: those of a class, and those of the account in a ProviderConfig."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from bullpen.api.fields import Struct, about
from bullpen.provisioners.parameters import AMOUNT_PATTERN

CHOICES_MAX = 10
"""Instance types, subnets or zones of a class; every pair of them may be tried."""

TAGS_MAX = 40
"""AWS allows 50 tags, of which some are ours."""

PORTS_MAX = 16
USER_DATA_BYTES_MAX = 12 << 10
"""AWS takes 16 KiB, of which our own part needs some."""

TAG_PREFIX = "bullpen:"
STARTS = ("#cloud-config\n", "#!")
RESERVED_DRIVERS = frozenset({"console", "power", "ssh"})


class Market(StrEnum):
    ON_DEMAND = "onDemand"
    SPOT = "spot"


class AddressKind(StrEnum):
    PRIVATE = "private"
    PUBLIC = "public"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFilter(Struct):
    """Chooses the newest of the images that match."""

    owners: tuple[str, ...] = field(
        default=("self",),
        metadata=about(
            "Accounts whose images are considered, or self, amazon.",
            min_items=1,
            max_items=CHOICES_MAX,
            defaulted=True,
        ),
    )
    name: str = field(
        default="",
        metadata=about(
            "Name of the image, with the wildcards * and ?.", required=True, min_length=1
        ),
    )
    architecture: str = field(
        default="", metadata=about("Architecture of the image, such as x86_64 or arm64.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchTemplate(Struct):
    """A launch template of the account; what the class says goes before it."""

    id: str = field(default="", metadata=about("Its id. Exclusive with name."))
    name: str = field(default="", metadata=about("Its name."))
    version: str = field(
        default="$Default",
        metadata=about("Its version: a number, $Default or $Latest.", defaulted=True),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RootVolume(Struct):
    """The disk that the instance boots from. What is not given is as in the image."""

    size_gib: int = field(
        default=0, metadata=about("Size in GiB.", name="sizeGiB", minimum=0, maximum=65536)
    )
    type: str = field(default="", metadata=about("Type of the volume, such as gp3."))
    iops: int = field(default=0, metadata=about("I/O operations per second.", minimum=0))
    encrypted: bool = field(default=False, metadata=about("Encrypt the volume."))
    kms_key_id: str = field(
        default="", metadata=about("Key for the encryption; that of the account if empty.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SshParameters(Struct):
    """How the machine is logged in to."""

    user: str = field(
        default="ec2-user",
        metadata=about(
            "The default user of the image, such as ec2-user, ubuntu or admin.",
            min_length=1,
            max_length=64,
            defaulted=True,
        ),
    )
    port: int = field(
        default=22,
        metadata=about("Port of its SSH server.", minimum=1, maximum=65535, defaulted=True),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ec2Parameters(Struct):
    """Parameters of a class."""

    image_id: str = field(default="", metadata=about("The image, such as ami-0123456789abcdef0."))
    image_filter: ImageFilter | None = field(
        default=None,
        metadata=about(
            "Chooses the newest image that matches, when the service first needs one. Exclusive"
            " with imageId."
        ),
    )
    launch_template: LaunchTemplate | None = field(
        default=None, metadata=about("A launch template, which may have the image.")
    )
    instance_types: tuple[str, ...] = field(
        default=(),
        metadata=about(
            "Instance types in the order in which they are tried while there is no capacity.",
            required=True,
            min_items=1,
            max_items=CHOICES_MAX,
        ),
    )
    subnet_ids: tuple[str, ...] = field(
        default=(),
        metadata=about(
            "Subnets in the order in which they are tried for each type.", max_items=CHOICES_MAX
        ),
    )
    availability_zones: tuple[str, ...] = field(
        default=(),
        metadata=about(
            "Zones of the default network in the order in which they are tried for each type."
            " Exclusive with subnetIds.",
            max_items=CHOICES_MAX,
        ),
    )
    security_group_ids: tuple[str, ...] = field(
        default=(),
        metadata=about(
            "Security groups. They must let this service reach the SSH port and all ports.",
            max_items=CHOICES_MAX,
        ),
    )
    market: Market = field(
        default=Market.ON_DEMAND,
        metadata=about(
            "onDemand; or spot, which is cheaper and may be ended by AWS at any time.",
            defaulted=True,
        ),
    )
    spot_max_price: str = field(
        default="",
        metadata=about(
            "The highest hourly price for spot; that of onDemand if empty.", pattern=AMOUNT_PATTERN
        ),
    )
    user_data: str = field(
        default="",
        metadata=about(
            "A cloud-config, which begins with #cloud-config, or a script, which begins with #!."
            " Lessees and all users of the account can read it: no secrets.",
            max_length=USER_DATA_BYTES_MAX,
        ),
    )
    iam_instance_profile: str = field(
        default="",
        metadata=about(
            "Name or ARN of an instance profile. Lessees have all of its rights; none by default."
        ),
    )
    root_volume: RootVolume | None = field(
        default=None, metadata=about("The disk that the instance boots from.")
    )
    control: bool = field(
        default=False,
        metadata=about(
            "Lessees can switch the instance (driver power) and read the output of its console"
            " (driver console). Needs sts:GetFederationToken, or assumeRole of the ProviderConfig."
        ),
    )
    hibernate: bool = field(
        default=False,
        metadata=about(
            "Stop lasting targets by hibernation: they go on where they were. Needs"
            " rootVolume.encrypted and a type and image that can hibernate."
        ),
    )
    associate_public_ip: bool = field(
        default=False, metadata=about("Give the instance a public address.")
    )
    address: AddressKind = field(
        default=AddressKind.PRIVATE,
        metadata=about("Which address exporters connect to: private or public.", defaulted=True),
    )
    ssh: SshParameters = field(
        default=SshParameters(), metadata=about("How the machine is logged in to.")
    )
    ports: Mapping[str, int] = field(
        default_factory=dict,
        metadata=about(
            "TCP ports of the machine by name; a driver of that name connects to them.",
            max_properties=PORTS_MAX,
            items={"minimum": 1, "maximum": 65535},
        ),
    )
    tags: Mapping[str, str] = field(
        default_factory=dict,
        metadata=about("Further tags of the instance and its volumes.", max_properties=TAGS_MAX),
    )
    hourly_cost: str = field(
        default="",
        metadata=about(
            "Estimated cost of an instance per hour, for limits and reports; unknown if empty.",
            pattern=AMOUNT_PATTERN,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumeRole(Struct):
    """A role that all calls are made with."""

    arn: str = field(default="", metadata=about("The role.", required=True, min_length=1))
    external_id: str = field(
        default="", metadata=about("The external id that the role demands, if it does.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ec2Account(Struct):
    """``parameters`` of a ProviderConfig."""

    region: str = field(
        default="",
        metadata=about("The region, such as eu-central-1.", required=True, min_length=1),
    )
    assume_role: AssumeRole | None = field(
        default=None, metadata=about("A role that all calls are made with.")
    )


def problems(wanted: Ec2Parameters) -> Iterator[tuple[str, str]]:
    """What a schema cannot express: the parameter, and what is wrong with it."""
    if wanted.image_id and wanted.image_filter is not None:
        yield "imageFilter", "is exclusive with imageId"
    if not wanted.image_id and wanted.image_filter is None and wanted.launch_template is None:
        yield "imageId", "an image is required: imageId, imageFilter or a launchTemplate with one"
    template = wanted.launch_template
    if template is not None and bool(template.id) == bool(template.name):
        yield "launchTemplate", "either id or name is required"
    if wanted.subnet_ids and wanted.availability_zones:
        yield "availabilityZones", "is exclusive with subnetIds"
    if wanted.spot_max_price and wanted.market is not Market.SPOT:
        yield "spotMaxPrice", "is for market: spot"
    if wanted.root_volume is not None and not _has_image(wanted):
        yield "rootVolume", "needs imageId or imageFilter, to know its name"
    yield from _stopping_problems(wanted)
    if wanted.user_data and not wanted.user_data.startswith(STARTS):
        yield "userData", "must begin with #cloud-config or #!"
    if len(wanted.user_data.encode()) > USER_DATA_BYTES_MAX:
        yield "userData", f"has more than {USER_DATA_BYTES_MAX} bytes"
    for name in sorted(wanted.tags):
        if name.startswith((TAG_PREFIX, "aws:")):
            yield f"tags.{name}", f"tags that begin with {TAG_PREFIX} or aws: are reserved"
    for name in sorted(RESERVED_DRIVERS & wanted.ports.keys()):
        yield f"ports.{name}", f"{name!r} is a driver of every target"


def _stopping_problems(wanted: Ec2Parameters) -> Iterator[tuple[str, str]]:
    if wanted.control and wanted.market is Market.SPOT:
        yield "control", "is for market: onDemand; a spot instance cannot be switched off"
    encrypted = wanted.root_volume is not None and wanted.root_volume.encrypted
    if wanted.hibernate and not encrypted:
        yield "hibernate", "needs rootVolume.encrypted: the memory is written to that disk"
    if wanted.hibernate and wanted.market is Market.SPOT:
        yield "hibernate", "is for market: onDemand"


def _has_image(wanted: Ec2Parameters) -> bool:
    return bool(wanted.image_id) or wanted.image_filter is not None
