"""Changes of the disks of a running machine, and disks without space, through QMP.

The boot disk stays: it is a device of its own. The others are on a SCSI controller, where a
disk comes and goes without the help of the guest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bullpen.drivers.qemu_command import CONTROLLER
from bullpen.drivers.qemu_power import Qmp, QmpError
from bullpen.drivers.target_files import AttachedDisk


class RestartNeeded(ValueError):
    """The machine cannot take the change while it runs; says why."""


@dataclass(frozen=True, slots=True)
class Attach:
    disk: AttachedDisk


@dataclass(frozen=True, slots=True)
class Detach:
    disk: AttachedDisk


@dataclass(frozen=True, slots=True)
class Grow:
    disk: AttachedDisk


Change = Attach | Detach | Grow


def changes(
    present: tuple[AttachedDisk, ...], wanted: tuple[AttachedDisk, ...], *, bytes_max: int = 0
) -> tuple[Change, ...]:
    """What makes ``present`` into ``wanted``, in order. Pure; raises ``RestartNeeded``.

    ``bytes_max`` is the largest file the machine may write; 0 for any.
    """
    before, after = {disk.name: disk for disk in present}, {disk.name: disk for disk in wanted}
    if next(iter(before), "") != next(iter(after), ""):
        raise RestartNeeded("the boot disk changes only at a start")
    kept = [name for name in after if name in before]
    if kept != [name for name in before if name in after]:
        raise RestartNeeded("the order of the disks changes only at a start")
    for disk in wanted:
        _refuse(disk, known=disk.name in before, bytes_max=bytes_max)
    return (
        *(Detach(disk) for disk in present if disk.name not in after),
        *(
            Grow(replace(before[name], size_bytes=after[name].size_bytes))
            for name in kept
            if after[name].size_bytes > before[name].size_bytes and not before[name].read_only
        ),
        *(Attach(disk) for disk in wanted if disk.name not in before),
    )


def _refuse(disk: AttachedDisk, *, known: bool, bytes_max: int) -> None:
    if not known and disk.read_only:
        raise RestartNeeded("an image is attached only at a start")
    # A disk takes more space than it offers: up to a sixteenth is for its format.
    if bytes_max and not disk.read_only and disk.size_bytes * 17 // 16 > bytes_max:
        raise RestartNeeded(
            f"the machine was started for files of at most {bytes_max >> 20} MiB, and a disk of"
            f" {disk.size_bytes >> 20} MiB can become larger"
        )


def applied(present: tuple[AttachedDisk, ...], change: Change) -> tuple[AttachedDisk, ...]:
    """The disks after one change."""
    match change:
        case Attach(disk=disk):
            return (*present, disk)
        case Detach(disk=disk):
            return tuple(each for each in present if each.name != disk.name)
        case Grow(disk=disk):
            return tuple(disk if each.name == disk.name else each for each in present)


async def apply(qmp: Qmp, change: Change) -> None:
    """Make one change. Raises ``QmpError`` if QEMU rejects it; nothing has changed then."""
    name = change.disk.name
    match change:
        case Attach(disk=disk):
            file = {"driver": "file", "filename": disk.path}
            await qmp.execute(
                "blockdev-add", **{"driver": disk.format.value, "node-name": name, "file": file}
            )
            try:
                await qmp.execute(
                    "device_add",
                    **{"driver": "scsi-hd", "id": name, "drive": name, "serial": name},
                    bus=f"{CONTROLLER}.0",
                )
            except QmpError:
                await qmp.execute("blockdev-del", **{"node-name": name})
                raise
        case Detach():
            await qmp.execute("device_del", id=name)
            await _released(qmp, name)
            await qmp.execute("blockdev-del", **{"node-name": name})
        case Grow(disk=disk):
            await qmp.execute("block_resize", **{"node-name": name, "size": disk.size_bytes})


async def _released(qmp: Qmp, name: str) -> None:
    """Return when a device is gone.

    An emulated guest that is never idle can delay that forever, so it is paused meanwhile,
    which takes a tenth of a second.
    """
    await qmp.execute("stop")
    try:
        await qmp.until("DEVICE_DELETED", device=name)
    finally:
        await qmp.execute("cont")


async def without_space(qmp: Qmp) -> tuple[str, ...]:
    """The disks for which the machine is paused because nothing can be written; it goes on then.

    QEMU pauses a machine when its host has no space for a write, so no file is damaged and the
    guest sees no error. The write is repeated when the machine goes on, which pauses it again if
    there is still no space.
    """
    state = await qmp.execute("query-status")
    if state["status"] != "io-error":
        return ()
    devices = await qmp.execute("query-block")
    names = tuple(
        device["inserted"].get("node-name", "")
        for device in devices
        if device.get("io-status", "ok") != "ok" and "inserted" in device
    )
    await qmp.execute("cont")
    return names
