"""``qemu.jumpstarter.dev``: what to run for a QEMU target. Pure; nothing is started here."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from bullpen.api import codec
from bullpen.api.exporter_template import Driver
from bullpen.api.kinds.virtualdisk import DiskImage
from bullpen.api.paths import Document, shown, written
from bullpen.core.targets.profiles import ProfileDisk
from bullpen.drivers import sizes
from bullpen.drivers.qemu_parameters import (
    UNDECLARED_DISK_BYTES_MAX,
    Accel,
    QemuParameters,
    all_disks,
    size_bytes,
)
from bullpen.drivers.target_files import (
    AttachedDisk,
    ImageFormat,
    MachineIdentity,
    MachineSite,
    files,
)
from bullpen.errors import Cause
from bullpen.provisioners import parameters
from bullpen.provisioners.base import Artifact, Needs, Plugin, Profile, Program, Site

NAME = "qemu.jumpstarter.dev"
PUBLISHED_DRIVER = "jumpstarter_driver_qemu.driver.Qemu"
DRIVER = "bullpen.drivers.qemu.Qemu"
"""A subclass of the published driver; clients cannot tell them apart."""

MODULES = ("bullpen.drivers.qemu", "jumpstarter_driver_composite.driver")
"""Modules that the driver of a QEMU target needs."""

MACHINE_NAME = "qemu"
RUNTIME = "qemu"
OVERHEAD_BYTES = 160 << 20
"""Typical memory of QEMU besides its guest's memory, and of the exporter."""

OVERHEAD_BYTES_MAX = 640 << 20
"""Maximum overhead: half is for translated code, which is bounded, and kernel memory."""

SIZE_BYTES_MIN = 1 << 20
SIZE_BYTES_MAX = 64 << 40

_HOST_NAME = re.compile(r"[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*")

RESERVED_NAMES = frozenset({"power", "flasher", "console", "vnc"})
"""Children every QEMU driver has."""


PACKAGES = {"aarch64": "qemu-system-arm", "arm": "qemu-system-arm", "x86_64": "qemu-system-x86"}
"""The Debian packages with the emulators of some architectures."""

OTHER_PACKAGE = "qemu-system-misc"
"""The package with all others."""

QEMU_IMG = Program("qemu-img", "qemu-utils")


def emulator(arch: str) -> Program:
    """The emulator of an architecture."""
    return Program(f"qemu-system-{arch}", PACKAGES.get(arch, OTHER_PACKAGE))


class QemuRecipe:
    name = NAME

    def __init__(self, *, host_arch: str) -> None:
        self._host_arch = host_arch

    def check(
        self, given: Mapping[str, object], drivers: tuple[Driver, ...] = ()
    ) -> tuple[Cause, ...]:
        causes = parameters.causes_of(QemuParameters, given)
        if causes:
            return causes
        wanted = parameters.read(QemuParameters, given)
        names = frozenset(driver.name for driver in with_machine(drivers))
        return (
            *_size_causes(wanted),
            *_forward_causes(wanted),
            *_source_causes(wanted),
            *parameters.reference_causes(drivers, names),
            *_driver_causes(drivers),
        )

    def needs(self, profile: Profile) -> Needs:
        wanted = parameters.read(QemuParameters, profile.parameters)
        arch = self._arch(wanted)
        asks = wanted.accel is Accel.AUTO and arch == self._host_arch
        memory, cpus = _granted(wanted, profile.drivers)
        return Needs(
            memory_bytes=memory + OVERHEAD_BYTES,
            cpus=cpus,
            memory_bytes_max=memory + OVERHEAD_BYTES_MAX,
            cpus_max=cpus + 1,
            file_bytes_max=_file_bytes_max(wanted, profile),
            artifacts=tuple(
                dict.fromkeys((*map(parameters.artifact, files(wanted)), *_images(profile)))
            ),
            programs=(emulator(arch), QEMU_IMG),
            kvm_for=arch if asks else "",
            runtime=RUNTIME,
        )

    def export(self, profile: Profile, site: Site) -> Document:
        machine: Document = {
            "target": dict(profile.parameters),
            "site": codec.encode(self._site(profile, site)),
            **({"retain": True} if profile.retain else {}),
        }
        drivers = tuple(_completed(driver, machine) for driver in with_machine(profile.drivers))
        return parameters.export_of(drivers)

    def _arch(self, wanted: QemuParameters) -> str:
        return wanted.arch.value if wanted.arch else self._host_arch

    def _site(self, profile: Profile, site: Site) -> MachineSite:
        known = profile.identity
        return MachineSite(
            lasting=profile.keep,
            identity=MachineIdentity(uuid=known.uuid, mac=known.mac, serial=known.serial)
            if known is not None
            else None,
            disks=tuple(_attached(disk, site) for disk in profile.disks),
            arch=self._host_arch,
            kvm=site.kvm,
            launcher=site.launcher,
            files=parameters.fetched(site),
        )


def with_machine(drivers: tuple[Driver, ...]) -> tuple[Driver, ...]:
    """The drivers, including the machine.

    A set without drivers gets the machine, its power and its console.
    """
    if any(driver.type in (PUBLISHED_DRIVER, DRIVER) for driver in drivers):
        return drivers
    machine = Driver(name=MACHINE_NAME, type=DRIVER)
    if drivers:
        return (machine, *drivers)
    return (
        machine,
        Driver(name="power", ref=f"{MACHINE_NAME}.power"),
        Driver(name="serial", ref=f"{MACHINE_NAME}.console"),
    )


def _completed(driver: Driver, machine: Document) -> Driver:
    """The machine's settings; those of the template override the parameters."""
    if driver.type not in (PUBLISHED_DRIVER, DRIVER):
        return driver
    return replace(driver, type=DRIVER, config={**machine, **driver.config})


def _granted(wanted: QemuParameters, drivers: tuple[Driver, ...]) -> tuple[int, int]:
    """Memory and CPUs of the machine, from the template or from the parameters."""
    config = _machine_config(drivers)
    memory = sizes.memory_bytes(str(config["mem"])) if "mem" in config else None
    return (
        size_bytes(wanted.resources.memory) if memory is None else memory,
        int(str(config.get("smp", wanted.resources.cpu))),
    )


def _attached(disk: ProfileDisk, site: Site) -> AttachedDisk:
    if disk.image is None:
        path = str(site.disks[disk.name])
        return AttachedDisk(name=disk.name, path=path, size_bytes=disk.size_bytes)
    path = str(site.artifacts[_image(disk.image)])
    image_format = ImageFormat(disk.image.format.value)
    return AttachedDisk(name=disk.name, path=path, format=image_format, read_only=True)


def _images(profile: Profile) -> Iterator[Artifact]:
    """The images that the target shares with others."""
    for disk in profile.disks:
        if disk.image is not None:
            yield _image(disk.image)


def _image(image: DiskImage) -> Artifact:
    return Artifact(path=image.path, url=image.url, digest=image.digest)


def _file_bytes_max(wanted: QemuParameters, profile: Profile) -> int:
    """The largest image, with the overhead of its format; 0 if a disk is as large as its base."""
    disks = all_disks(wanted)
    if any(not disk.size for disk in disks):
        return 0
    config = _machine_config(profile.drivers)
    root = sizes.parsed(str(config["disk_size"])) if config.get("disk_size") else 0
    lasting = (disk.size_bytes for disk in profile.disks)
    declared = (size_bytes(disk.size) for disk in disks)
    largest = max((UNDECLARED_DISK_BYTES_MAX, root, *declared, *lasting))
    return largest + largest // 16


def _machine_config(drivers: tuple[Driver, ...]) -> Mapping[str, object]:
    return next((d.config for d in drivers if d.type in (PUBLISHED_DRIVER, DRIVER)), {})


def _size_causes(wanted: QemuParameters) -> Iterator[Cause]:
    sizes: dict[tuple[str | int, ...], int | str] = {
        ("resources", "memory"): wanted.resources.memory,
        ("resources", "storage"): wanted.resources.storage,
    }
    sizes |= {("disks", index, "size"): disk.size for index, disk in enumerate(wanted.disks)}
    for path, size in sizes.items():
        if size != "" and not SIZE_BYTES_MIN <= size_bytes(size) <= SIZE_BYTES_MAX:
            message = f"Invalid value: {shown(size)}: must be between 1Mi and 64Ti"
            yield Cause(field=written((parameters.ROOT, *path)), message=message)


def _forward_causes(wanted: QemuParameters) -> Iterator[Cause]:
    for name in sorted(RESERVED_NAMES & wanted.hostfwd.keys()):
        path = written((parameters.ROOT, "hostfwd", name))
        yield Cause(field=path, message=f"Invalid value: {name!r} is a driver of every machine")


def _source_causes(wanted: QemuParameters) -> Iterator[Cause]:
    for index, entry in enumerate(wanted.fetch_from):
        if problem := _source_problem(entry):
            path = written((parameters.ROOT, "fetchFrom", index))
            yield Cause(field=path, message=f"Invalid value: {shown(entry)}: {problem}")


def _source_problem(entry: str) -> str:
    if entry == "*" or _HOST_NAME.fullmatch(entry.removeprefix("*.")):
        return ""
    try:
        ipaddress.ip_network(entry)
    except ValueError as error:
        return f"must be a host name, *.name, a network or *: {error}"
    return ""


def _driver_causes(drivers: tuple[Driver, ...]) -> Iterator[Cause]:
    for index, driver in enumerate(drivers):
        clash = driver.name == MACHINE_NAME and driver.type not in (PUBLISHED_DRIVER, DRIVER)
        if driver.type in (PUBLISHED_DRIVER, DRIVER):
            yield from _config_causes(index, driver)
        if clash and not any(other.type in (PUBLISHED_DRIVER, DRIVER) for other in drivers):
            message = f"Invalid value: {MACHINE_NAME!r} is the machine itself"
            yield Cause(field=f"drivers[{index}].name", message=message)


def _config_causes(index: int, driver: Driver) -> Iterator[Cause]:
    """The resources of the machine must be known before it is created."""
    for name, read in (("mem", sizes.memory_bytes), ("disk_size", sizes.parsed), ("smp", int)):
        try:
            read(str(driver.config.get(name, 1)))
        except ValueError as error:
            yield Cause(field=f"drivers[{index}].config.{name}", message=f"Invalid value: {error}")


PLUGIN = Plugin(
    name=NAME,
    recipe=lambda host: QemuRecipe(host_arch=host.arch),
    preload=(*MODULES, "jumpstarter_driver_power.driver"),
    runtime=RUNTIME,
)
