"""QEMU's command line. Pure: all inputs are arguments, nothing is looked up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from bullpen.drivers.qemu_parameters import Accel, NetworkAccess, QemuParameters
from bullpen.drivers.target_files import MachineSite

DEFAULT_MACHINES = {
    "aarch64": "virt",
    "arm": "virt",
    "avr": "uno",
    "riscv64": "virt",
    "x86_64": "q35",
}
DEFAULT_CPUS = {
    "aarch64": "cortex-a57",
    "x86_64": "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt",
}

CONTROLLER = "disks"
"""Identifies the SCSI controller of a lasting machine, for all its disks but the first."""

_WITH_PCI = ("virt", "q35", "pc")
_WITH_SMBIOS = ("aarch64", "x86_64")
LOOPBACK = "127.0.0.1"
TRANSLATION_MIB_MAX = 256
"""Memory for translated code; by default QEMU would use a GiB besides the guest's memory."""

SECCOMP = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
"""A system call that a machine does not need terminates QEMU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drive:
    name: str
    path: str
    format: str
    standalone: bool = False
    """No other file is opened for it, whatever its header says: it came from a lessee."""

    read_only: bool = False
    removable: bool = False
    """It can be detached while the machine runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """A port of the guest that is reached through a port of the host."""

    guest_port: int
    host_port: int = 0
    """0 lets the kernel choose a free one."""

    host: str = LOOPBACK
    protocol: str = "tcp"

    def __str__(self) -> str:
        return f"hostfwd={self.protocol}:{self.host}:{self.host_port}-:{self.guest_port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A virtual machine about to be switched on: its parameters, and what is known only now."""

    parameters: QemuParameters = field(default_factory=QemuParameters)
    site: MachineSite = field(default_factory=MachineSite)
    arch: str
    smp: int = 1
    memory: str = "512M"
    """Empty for the memory that the board has."""

    bios: str = ""
    flashed_kernel: str = ""
    """Replaces the kernel of the parameters."""

    flash: tuple[str, str] | None = None
    """Firmware code, read-only, and its variables, writable."""

    drives: tuple[Drive, ...] = ()
    cidata: str = ""
    """Directory with the files of cloud-init."""

    forwards: tuple[Forward, ...] = ()
    vsock_cid: int | None = None
    vnc: str = ""
    control: str = ""
    """Path of a socket on which QEMU accepts QMP connections while it runs; empty for none."""

    qmp: int
    """Open socket for QMP."""

    serial: int
    """Open socket of the machine's first serial line."""

    @property
    def kernel(self) -> str:
        own = self.parameters.kernel
        return self.flashed_kernel or (self.site.path(own) if own else "")

    @property
    def kvm(self) -> bool:
        accel = self.parameters.accel
        return accel is Accel.KVM or (accel is Accel.AUTO and self.site.kvm)


def board_of(wanted: QemuParameters, arch: str) -> str:
    return wanted.machine_type or DEFAULT_MACHINES[arch]


def is_configurable(board: str) -> bool:
    """Whether the board has slots. Others model real hardware, with the memory that it has."""
    return board.startswith(_WITH_PCI)


def command(machine: Machine) -> tuple[str, ...]:
    """Program and arguments. The guest is paused until it is told to continue."""
    wanted = machine.parameters
    board = board_of(wanted, machine.arch)
    cpu = wanted.cpu or ("host" if machine.kvm else DEFAULT_CPUS.get(machine.arch, ""))
    return (
        f"qemu-system-{machine.arch}",
        *("-nodefaults", "-nographic", "-S"),
        *("-sandbox", SECCOMP),
        *("-machine", board),
        *("-accel", "kvm" if machine.kvm else f"tcg,tb-size={TRANSLATION_MIB_MAX}"),
        *(("-cpu", cpu) if cpu else ()),
        *("-smp", str(machine.smp)),
        *(("-m", machine.memory) if machine.memory else ()),
        *_identity(machine),
        *("-chardev", f"socket,id=qmp,fd={machine.qmp}"),
        *("-mon", "chardev=qmp,mode=control"),
        *(("-qmp", f"unix:{machine.control},server=on,wait=off") if machine.control else ()),
        *("-chardev", f"socket,id=serial0,fd={machine.serial}"),
        *("-serial", "chardev:serial0"),
        *(("-vnc", f"unix:{machine.vnc}") if machine.vnc else ()),
        *_firmware(machine),
        *(_with_pci(machine) if is_configurable(board) else _on_board(machine)),
        *wanted.extra_arguments,
    )


def _identity(machine: Machine) -> Iterator[str]:
    known = machine.site.identity
    if known is None:
        return
    yield from ("-uuid", known.uuid)
    if machine.arch in _WITH_SMBIOS:
        yield from ("-smbios", f"type=1,serial={known.serial},uuid={known.uuid}")


def _firmware(machine: Machine) -> Iterator[str]:
    wanted = machine.parameters
    if machine.bios:
        yield from ("-bios", machine.bios)
    if machine.flash:
        code, variables = map(_escaped, machine.flash)
        yield from ("-drive", f"file={code},if=pflash,format=raw,unit=0,readonly=on")
        yield from ("-drive", f"file={variables},if=pflash,format=raw,unit=1")
    if machine.kernel:
        yield from ("-kernel", machine.kernel)
    if wanted.initrd is not None:
        yield from ("-initrd", machine.site.path(wanted.initrd))
    if wanted.append:
        yield from ("-append", wanted.append)


def _with_pci(machine: Machine) -> Iterator[str]:
    yield from ("-netdev", ",".join(("user", "id=eth0", *_network(machine))))
    yield from ("-device", f"virtio-net-pci,netdev=eth0{_mac(machine)}")
    yield from ("-vga", "none", "-device", "virtio-gpu-pci")
    if machine.vsock_cid is not None:
        yield from ("-device", f"vhost-vsock-pci,guest-cid={machine.vsock_cid}")
    if machine.site.lasting:
        yield from ("-device", f"virtio-scsi-pci,id={CONTROLLER}")
    for index, drive in enumerate(machine.drives):
        yield from ("-blockdev", _block_device(drive))
        yield from ("-device", f"{_device(drive)},bootindex={index + 1}")
    if machine.cidata:
        directory = _escaped(machine.cidata)
        yield from (
            "-blockdev",
            f"driver=vvfat,node-name=cidata,read-only=on,dir={directory},label=CIDATA",
        )
        yield from ("-device", "virtio-blk-pci,drive=cidata")


def _device(drive: Drive) -> str:
    if not drive.removable:
        return f"virtio-blk-pci,drive={drive.name}"
    own = f"id={drive.name},drive={drive.name},serial={drive.name}"
    return f"scsi-hd,{own},bus={CONTROLLER}.0"


def _mac(machine: Machine) -> str:
    known = machine.site.identity
    return f",mac={known.mac}" if known is not None else ""


def _network(machine: Machine) -> Iterator[str]:
    if machine.parameters.network is NetworkAccess.RESTRICTED:
        yield from ("restrict=on", "ipv6=off")
    yield from map(str, machine.forwards)


def _block_device(drive: Drive) -> str:
    if drive.standalone:
        return json.dumps({"node-name": drive.name, **_standalone(drive)})
    path = _escaped(drive.path)
    written = f"driver={drive.format},node-name={drive.name},file.driver=file,file.filename={path}"
    return f"{written},read-only=on" if drive.read_only else written


def _on_board(machine: Machine) -> Iterator[str]:
    """For boards with built-in controllers: QEMU attaches devices to those."""
    yield from ("-nic", f"{','.join(('user', *_network(machine)))}{_mac(machine)}")
    for index, drive in enumerate(machine.drives):
        yield from ("-drive", f"{_file(drive)},index={index}")


def _file(drive: Drive) -> str:
    if drive.standalone:
        return f"file={_escaped(standalone_name(drive))}"
    written = f"file={_escaped(drive.path)},format={drive.format}"
    return f"{written},readonly=on" if drive.read_only else written


def standalone_name(drive: Drive) -> str:
    """An image name under which QEMU's tools open this file only."""
    return f"json:{json.dumps(_standalone(drive))}"


def _standalone(drive: Drive) -> dict[str, object]:
    file = {"driver": "file", "filename": drive.path}
    backing = {"backing": None} if drive.format == "qcow2" else {}
    return {"driver": drive.format, "file": file, **backing}


def _escaped(path: str) -> str:
    """Escape commas, which would begin the next option."""
    return path.replace(",", ",,")
