"""The parameters of ``qemu.jumpstarter.dev``, with upstream's names where they exist.

They are validated where a pool is checked and travel from there to the driver as they are: a
new parameter needs this module, the command line that uses it and the reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import ClassVar

from bullpen.api.fields import Rule, Struct, about
from bullpen.drivers.target_files import File, ImageFormat
from bullpen.kit import quantities
from bullpen.kit.quantities import SIZE_PATTERN

_NAME = r"^[a-z][a-z0-9_]*$"

UNDECLARED_DISK_BYTES_MAX = 16 << 30
"""Maximum size of a flashed disk that the class does not declare."""

ARGUMENTS_MAX = 64
DISKS_MAX = 16
FORWARDS_MAX = 32
SOURCES_MAX = 64


class Arch(StrEnum):
    AARCH64 = "aarch64"
    ARM = "arm"
    AVR = "avr"
    RISCV64 = "riscv64"
    X86_64 = "x86_64"


class Accel(StrEnum):
    AUTO = "auto"
    KVM = "kvm"
    TCG = "tcg"


class NetworkAccess(StrEnum):
    RESTRICTED = "restricted"
    USER = "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class Firmware(File):
    """What the machine runs first."""

    variables: File | None = field(
        default=None,
        metadata=about(
            "UEFI variables. With them the firmware is flash memory; a fresh copy is made for"
            " each lease."
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Base(File):
    """An image that a disk starts from."""

    format: ImageFormat = field(
        default=ImageFormat.QCOW2, metadata=about("Format of the image.", defaulted=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk(Struct):
    """A disk of the machine. Every lease gets a fresh one."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(rule="has(self.base) || has(self.size)", message="give a base, a size or both"),
    )

    name: str = field(
        metadata=about(
            "Name for flashing; the machine boots from `root` first.",
            required=True,
            pattern=_NAME,
            max_length=30,
        )
    )
    base: Base | None = field(
        default=None, metadata=about("Initial content of the disk; it is never written to.")
    )
    size: int | str = field(
        default="",
        metadata=about("Size of the disk; that of the base by default.", pattern=SIZE_PATTERN),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources(Struct):
    """How much of a machine it is."""

    cpu: int = field(
        default=1, metadata=about("Virtual CPUs.", minimum=1, maximum=255, defaulted=True)
    )
    memory: int | str = field(
        default="512Mi",
        metadata=about("Memory of the guest.", pattern=SIZE_PATTERN, defaulted=True),
    )
    storage: int | str = field(
        default="", metadata=about("Size of the disk `root`.", pattern=SIZE_PATTERN)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostForward(Struct):
    """A port of the guest that lessees can reach."""

    guest_port: int = field(
        metadata=about("Port in the guest.", required=True, minimum=1, maximum=65535)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QemuParameters(Struct):
    """Parameters of QEMU targets."""

    arch: Arch | None = field(
        default=None, metadata=about("Architecture of the guest; the host's by default.")
    )
    machine_type: str = field(
        default="",
        metadata=about(
            "QEMU's machine, such as virt; the usual one of the architecture if absent."
        ),
    )
    cpu: str = field(default="", metadata=about("CPU model, such as cortex-a72."))
    accel: Accel = field(
        default=Accel.AUTO,
        metadata=about(
            "kvm, tcg, or auto: KVM if a test guest ran with it on this host.",
            defaulted=True,
        ),
    )
    resources: Resources = field(default=Resources(), metadata=about("CPUs, memory and storage."))
    firmware: Firmware | None = field(default=None, metadata=about("Firmware of the machine."))
    kernel: File | None = field(default=None, metadata=about("Kernel to boot without firmware."))
    initrd: File | None = field(default=None, metadata=about("Initial RAM disk of the kernel."))
    append: str = field(default="", metadata=about("Command line of the kernel."))
    disks: tuple[Disk, ...] = field(
        default=(), metadata=about("Disks.", list_keys=("name",), max_items=DISKS_MAX)
    )
    hostfwd: Mapping[str, HostForward] = field(
        default_factory=dict,
        metadata=about(
            "Ports of the guest by name. Each instance gets free ports of the host; a driver"
            " of that name connects to them.",
            max_properties=FORWARDS_MAX,
        ),
    )
    network: NetworkAccess = field(
        default=NetworkAccess.RESTRICTED,
        metadata=about(
            "Network access of the guest. restricted: none; user: that of the host.",
            defaulted=True,
        ),
    )
    fetch_from: tuple[str, ...] = field(
        default=(),
        metadata=about(
            "Hosts from which images that a lessee names by URL may be fetched: names, *.names,"
            " networks, or * for every public address. Never the host itself.",
            max_items=SOURCES_MAX,
        ),
    )
    extra_arguments: tuple[str, ...] = field(
        default=(),
        metadata=about(
            "Additional QEMU arguments, at the end of its command line.", max_items=ARGUMENTS_MAX
        ),
    )


def all_disks(parameters: QemuParameters) -> tuple[Disk, ...]:
    """The disks, with ``resources.storage`` applied to ``root``."""
    size = parameters.resources.storage
    if not size:
        return parameters.disks
    if not any(disk.name == "root" for disk in parameters.disks):
        return (Disk(name="root", size=size), *parameters.disks)
    return tuple(
        replace(disk, size=disk.size or size) if disk.name == "root" else disk
        for disk in parameters.disks
    )


def size_bytes(quantity: int | str) -> int:
    return quantities.parse(quantity).whole()
