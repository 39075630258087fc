"""Parameters of devices of Corellium: those of a class, and of the project in a ProviderConfig."""

from __future__ import annotations

from dataclasses import dataclass, field

from bullpen.api.fields import Struct, about
from bullpen.provisioners.parameters import AMOUNT_PATTERN

LIST_MAX = 20
SCREEN_PATTERN = r"^([0-9]{2,5}x[0-9]{2,5}(:[0-9]{2,4})?)?$"


@dataclass(frozen=True, slots=True, kw_only=True)
class BootOptions(Struct):
    """How the device boots."""

    boot_args: str = field(default="", metadata=about("Arguments of the kernel.", max_length=4096))
    additional_tags: tuple[str, ...] = field(
        default=(), metadata=about("Features to switch on, such as gpu.", max_items=LIST_MAX)
    )
    screen: str = field(
        default="",
        metadata=about(
            "Size of the display, such as 720x1280 or, with its dots per inch, 720x1280:280.",
            pattern=SCREEN_PATTERN,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Device(Struct):
    """The device, in Corellium's words."""

    flavor: str = field(
        default="",
        metadata=about(
            "Flavor of the device, such as iphone6 or kronos.", required=True, min_length=1
        ),
    )
    os: str = field(
        default="",
        metadata=about("Version of its operating system.", required=True, min_length=1),
    )
    build: str = field(
        default="", metadata=about("Build of its operating system, if there are several.")
    )
    patches: tuple[str, ...] = field(
        default=(),
        metadata=about("Patches, such as jailbroken or nonjailbroken.", max_items=LIST_MAX),
    )
    snapshot: str = field(
        default="", metadata=about("Id of a snapshot that every instance starts from.")
    )
    fwpackage: str = field(
        default="", metadata=about("Id of a package of firmware that was uploaded to Corellium.")
    )
    boot_options: BootOptions | None = field(default=None, metadata=about("How the device boots."))


@dataclass(frozen=True, slots=True, kw_only=True)
class CorelliumParameters(Struct):
    """Parameters of a class."""

    device: Device = field(
        default=Device(), metadata=about("The device, in Corellium's words.", required=True)
    )
    console: str = field(
        default="",
        metadata=about("The console, by the name that Corellium shows; the default if empty."),
    )
    hourly_cost: str = field(
        default="",
        metadata=about(
            "Estimated cost of an instance per hour, for limits and reports; unknown if empty.",
            pattern=AMOUNT_PATTERN,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CorelliumAccount(Struct):
    """``parameters`` of a ProviderConfig."""

    project_id: str = field(
        default="",
        metadata=about(
            "Id of the project in which instances are made.",
            required=True,
            pattern=r"^[A-Za-z0-9-]{1,64}$",
        ),
    )
