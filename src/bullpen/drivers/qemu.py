"""A QEMU machine as a Jumpstarter driver: the published driver with additions for pools.

Ours are: the parameters of a class, disks as overlays, forwarded ports that the kernel
chooses, and a console that loses nothing. Clients see the published driver and use its
client. Every driver instance has its own directories, so the next lease starts from the base
images whatever the last one did.
"""

from __future__ import annotations

import asyncio
import platform
import resource
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, Literal

from jumpstarter.driver import export
from jumpstarter_driver_network.driver import VsockNetwork
from jumpstarter_driver_qemu import driver as published
from xdg_base_dirs import xdg_runtime_dir

from bullpen.api import codec
from bullpen.drivers import kvm_trial, launcher_client, qemu_disks, sandbox, sizes
from bullpen.drivers.console import Console
from bullpen.drivers.downloads import Sources
from bullpen.drivers.flasher import (
    FIRMWARE_BYTES_MAX,
    FIRMWARE_PARTITIONS,
    Flashed,
    FlashStore,
    Occupation,
    QemuFlasher,
    too_large,
)
from bullpen.drivers.qemu_command import (
    LOOPBACK,
    Drive,
    Forward,
    Machine,
    board_of,
    is_configurable,
)
from bullpen.drivers.qemu_disks import RestartNeeded
from bullpen.drivers.qemu_files import image_chain, named_paths
from bullpen.drivers.qemu_images import Disk, ImageTool
from bullpen.drivers.qemu_parameters import (
    UNDECLARED_DISK_BYTES_MAX,
    Accel,
    Firmware,
    HostForward,
    NetworkAccess,
    QemuParameters,
    all_disks,
    size_bytes,
)
from bullpen.drivers.qemu_ports import ForwardedPort, forwarded_ports
from bullpen.drivers.qemu_power import QemuPower, Qmp, QmpError, talking
from bullpen.drivers.sandbox import Access
from bullpen.drivers.target_files import AttachedDisk, File, ImageFormat, MachineSite

DEFAULT_CPUS = 2
"""CPUs of a machine that no class declares, as in the published driver."""


def _file(path: str) -> File | None:
    return File(path=path) if path else None


def _forwards(ports: dict[str, int]) -> dict[str, HostForward]:
    return {name: HostForward(guest_port=port) for name, port in ports.items()}


_SETTINGS: tuple[tuple[str, str, Callable[[Any], object]], ...] = (
    ("machine_type", "machine_type", str),
    ("cpu", "cpu", str),
    ("accel", "accel", Accel),
    ("kernel", "kernel", _file),
    ("initrd", "initrd", _file),
    ("append", "append", str),
    ("forwards", "hostfwd", _forwards),
    ("network", "network", NetworkAccess),
    ("fetch_from", "fetch_from", tuple),
    ("extra_args", "extra_arguments", tuple),
)
"""Settings of the driver, and the parameters they override."""


class _KeptDirectory:
    """A directory that is retained for later inspection."""

    def __init__(self) -> None:
        self.name = mkdtemp(prefix="qemu-")

    def cleanup(self) -> None:
        """Remove only empty directories."""
        path = Path(self.name)
        if path.exists() and not any(path.iterdir()):
            path.rmdir()


@dataclass(kw_only=True)
class Qemu(published.Qemu):
    """A QEMU machine with a console, a flasher, networks and power."""

    target: dict[str, Any] | None = None
    """A document of ``QemuParameters``: those of the class and the set, as they were validated."""

    site: dict[str, Any] = field(default_factory=dict)
    """A document of ``MachineSite``."""

    retain: bool = False
    """Keep the disks when the driver is closed."""

    # Settings of the driver in an exporter's config or a pool's template. Each overrides the
    # parameter it corresponds to; a parameter does not need such a setting.
    arch: str = ""
    smp: int = 0
    mem: str = ""
    machine_type: str | None = None
    accel: Literal["kvm", "tcg"] | None = None
    kernel: str | None = None
    initrd: str | None = None
    append: str | None = None
    disks: list[dict[str, Any]] | None = None
    forwards: dict[str, int] | None = None
    """Ports of the guest by name."""

    network: Literal["restricted", "user"] | None = None
    fetch_from: list[str] | None = None
    extra_args: list[str] | None = None

    def __post_init__(self) -> None:
        self.parameters = self._parameters()
        self.machine_site = codec.decode(MachineSite, self.site)
        self._memory_is_set = bool(self.mem)
        self._settle()
        super().__post_init__()  # type: ignore[no-untyped-call]
        self._sockets = TemporaryDirectory(dir=xdg_runtime_dir(), prefix="qemu-")
        if self.retain:
            self._tmp_dir.cleanup()
            self._tmp_dir: Any = _KeptDirectory()
        self._images = ImageTool(self.machine_site.launcher)
        self.on_ended: Callable[[int], None] | None = None
        self._talks = asyncio.Lock()
        """QEMU has one conversation at a time on its socket for changes."""

        self.sandbox = sandbox.current()
        self.occupation = Occupation()
        self._granted_memory = sizes.memory_bytes(self.mem)
        self._granted_disk_size = self.disk_size
        self.flashed = FlashStore(lambda: Path(self._tmp_dir.name))
        self._disks = {disk.name: disk for disk in self._declared_disks()}
        children: dict[str, Any] = self.children
        self.console = Console()  # type: ignore[abstract]
        children["console"] = self.console
        self._power = QemuPower(parent=self)  # type: ignore[abstract]
        children["power"] = self._power
        children["flasher"] = QemuFlasher(parent=self)  # type: ignore[abstract]
        children["vnc"].path = self._vnc
        restricted = self.parameters.network is NetworkAccess.RESTRICTED
        if restricted and isinstance(children.get("ssh"), VsockNetwork):
            del children["ssh"]  # it would also allow connections from the guest to the host
        for name in self.parameters.hostfwd:
            port = ForwardedPort(host=LOOPBACK, port=0)  # type: ignore[abstract]
            if not self.is_connected():
                port.sandbox = self.sandbox
                port.enable_address = self.sandbox.room is None
            children[name] = port

    def _parameters(self) -> QemuParameters:
        """The parameters, each overridden by the setting of the driver that corresponds to it."""
        own: dict[str, Any] = {
            parameter: convert(value)
            for setting, parameter, convert in _SETTINGS
            if (value := getattr(self, setting)) is not None
        }
        return replace(codec.decode(QemuParameters, self.target or {}), **own)

    def _settle(self) -> None:
        """Set the fields of the published driver that are not set from the parameters."""
        wanted, site = self.parameters, self.machine_site
        declared = self.target is not None
        if not self.arch:
            self.arch = wanted.arch.value if wanted.arch else site.arch or platform.machine()
        if not self.smp:
            self.smp = wanted.resources.cpu if declared else DEFAULT_CPUS
        if not self.mem:
            self.mem = f"{-(-size_bytes(wanted.resources.memory) // sizes.MIB)}M"
        if not self.default_partitions:
            self.default_partitions = _firmware_partitions(wanted.firmware, site)

    def _declared_disks(self) -> Iterator[Disk]:
        if self.disks is not None:
            yield from map(Disk.model_validate, self.disks)
            return
        for disk in all_disks(self.parameters):
            base = Path(self.machine_site.path(disk.base)) if disk.base else None
            image_format = disk.base.format if disk.base else ImageFormat.QCOW2
            size = size_bytes(disk.size) if disk.size else None
            yield Disk(name=disk.name, base=base, format=image_format.value, size=size)

    @property
    def _vnc(self) -> str:
        """The path of a socket must be short, so it is not beside the disks."""
        sockets = getattr(self, "_sockets", None)
        return str(Path(sockets.name) / "vnc") if sockets else ""

    def close(self) -> None:
        super().close()  # type: ignore[no-untyped-call]
        self._sockets.cleanup()
        self._tmp_dir.cleanup()

    def is_on(self) -> bool:
        return self._power.is_on()

    async def start_lasting(self, on_ended: Callable[[int], None]) -> None:
        """Switch a lasting machine on; ``on_ended`` gets its exit code, in another thread.

        It is not called if the machine is switched off through its power driver.
        """
        if self.machine_site.lasting:
            self.on_ended = on_ended
            await self._power.on()

    async def change_disks(self, wanted: tuple[AttachedDisk, ...]) -> None:
        """Attach, detach and grow disks; raises ``RestartNeeded`` if a restart is needed.

        What was changed before an error stays changed, and is known at the next call.
        """
        with self.occupation.of("changing its disks"):
            limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
            bytes_max = 0 if limit == resource.RLIM_INFINITY else limit
            due = qemu_disks.changes(self.machine_site.disks, wanted, bytes_max=bytes_max)
            if not due:
                return
            if not self._control or not self.is_on():
                raise RestartNeeded("this machine takes its disks only when it starts")
            try:
                async with self._talks, talking(self._controlled()) as qmp:
                    for change in due:
                        await qemu_disks.apply(qmp, change)
                        disks = qemu_disks.applied(self.machine_site.disks, change)
                        self.machine_site = replace(self.machine_site, disks=disks)
            except (QmpError, OSError) as error:
                raise RestartNeeded(f"QEMU refused it: {error}") from None

    async def paused(self) -> str:
        """Why the machine is paused, empty if it is not; it is let go on each time."""
        if not self._control or not self.is_on():
            return ""
        async with self._talks, talking(self._controlled()) as qmp:
            names = await qemu_disks.without_space(qmp)
        return f"its host has no space for disk {', '.join(names)}" if names else ""

    def _controlled(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(self._control)
        except OSError:
            connection.close()
            raise
        return connection

    @property
    def _control(self) -> str:
        """The path of the socket for changes while the machine runs; empty if it takes none."""
        site = self.machine_site
        slots = is_configurable(board_of(self.parameters, self.arch))
        attached = any(not disk.read_only for disk in site.disks)
        if not site.lasting or site.launcher or not slots or not attached:
            return ""
        return str(Path(self._sockets.name) / "qmp")

    def is_connected(self) -> bool:
        """Whether the machine is in the host's network, as configured in its class."""
        return self.parameters.network is NetworkAccess.USER or bool(self.hostfwd)

    def sources(self) -> Sources:
        return Sources.of(self.parameters.fetch_from)

    def access(self, machine: Machine) -> Access:
        """The files the machine needs, and no others."""
        wanted = self.parameters
        bases = [disk.base for disk in self._disks.values() if disk.base]
        root = self.default_partitions.get("root")
        images = (*bases, *((root,) if root else ()))
        attached = self.machine_site.disks
        return Access(
            readable=(
                *((machine.bios,) if machine.bios else ()),
                *((machine.kernel,) if machine.kernel else ()),
                *((self.machine_site.path(wanted.initrd),) if wanted.initrd else ()),
                *((machine.flash[0],) if machine.flash else ()),
                *(str(file) for image in images for file in image_chain(image)),
                *named_paths(wanted.extra_arguments),
                *((machine.cidata,) if machine.cidata else ()),
                *(disk.path for disk in attached if disk.read_only),
            ),
            writable=(
                self._tmp_dir.name,
                self._sockets.name,
                *(str(Path(disk.path).parent) for disk in attached if not disk.read_only),
            ),
            devices=(
                *(("/dev/kvm",) if machine.kvm else ()),
                *(("/dev/vhost-vsock",) if machine.vsock_cid is not None else ()),
            ),
        )

    def partition_name(self, partition: str | None) -> str:
        """The full partition name; raises ``ValueError`` if there is no such partition."""
        name = partition or "root"
        if name != "root" and name not in self._disks and name not in FIRMWARE_PARTITIONS:
            raise ValueError(f"invalid partition name: {partition}")
        return name

    def validate_partition(
        self,
        partition: str | None = None,
        use_default_partitions: bool = False,  # noqa: FBT001, FBT002 - as published
    ) -> Path:
        name = self.partition_name(partition)
        if flashed := self.flashed.get(name):
            return flashed.path
        if use_default_partitions and name in self.default_partitions:
            return self.default_partitions[name]
        return Path(self._tmp_dir.name) / name

    async def granted_bytes(self, partition: str) -> int:
        """The maximum size of a partition, according to the class."""
        if partition in FIRMWARE_PARTITIONS:
            return FIRMWARE_BYTES_MAX
        disk = await self._declared(partition, self._granted_disk_size)
        if disk.size is not None:
            return disk.size
        if disk.base is not None:
            return int((await self._images.info(disk.base, disk.format))["virtual-size"])
        return UNDECLARED_DISK_BYTES_MAX

    @export  # type: ignore[untyped-decorator]
    async def set_disk_size(self, size: str) -> None:
        """Set the size of ``root`` from the next power-on, within the limit of the class."""
        asked, granted = sizes.parsed(str(size)), await self.granted_bytes("root")
        if asked > granted:
            raise too_large("root", asked, granted)
        self.disk_size = str(size)

    @export  # type: ignore[untyped-decorator]
    async def set_memory_size(self, size: str) -> None:
        """Set the memory from the next power-on, within the limit of the class."""
        asked = sizes.parsed(str(size))
        if not sizes.MIB <= asked <= self._granted_memory:
            raise ValueError(
                f"the machine cannot have {sizes.shown(asked)} of memory: the class of this target"
                f" grants between 1M and {sizes.shown(self._granted_memory)}; ask its owner to"
                " raise resources.memory"
            )
        self.mem = f"{-(-asked // sizes.MIB)}M"
        self._memory_is_set = True

    async def machine(self, *, qmp: int, serial: int, cidata: str) -> Machine:
        """The machine to be switched on now, with its disks ready."""
        vsock = isinstance(self.children.get("ssh"), VsockNetwork)
        flashed = self.flashed.get("kernel")
        forwards = self.parameters.hostfwd.values()
        return Machine(
            parameters=self.parameters,
            site=kvm_trial.trusted(self.machine_site),
            arch=self.arch,
            smp=self.smp,
            memory=self._memory(),
            bios=self._present("bios"),
            flashed_kernel=str(flashed.path) if flashed else "",
            flash=await self._flash(),
            drives=await self._drives(),
            cidata=cidata,
            forwards=(
                *(
                    Forward(guest_port=f.guestport, host_port=f.hostport, host=f.hostaddr)
                    for f in self.hostfwd.values()
                ),
                *(Forward(guest_port=forward.guest_port) for forward in forwards),
            ),
            vsock_cid=self._cid if vsock else None,
            vnc=self._vnc,
            control=self._control,
            qmp=qmp,
            serial=serial,
        )

    def _memory(self) -> str:
        """The memory to set; empty if a board has its own and no other size is given."""
        resources = (self.target or {}).get("resources", {})
        named = self._memory_is_set or "memory" in resources or self.target is None
        board = board_of(self.parameters, self.arch)
        if not named and not is_configurable(board):
            return ""
        return f"{-(-sizes.memory_bytes(self.mem) // sizes.MIB)}M"

    async def connect(self, qmp: Qmp) -> None:
        """Connect the networks to the ports the kernel chose."""
        if self.parameters.hostfwd:
            shown = await qmp.execute("human-monitor-command", **{"command-line": "info usernet"})
            found = forwarded_ports(shown)
            children: dict[str, Any] = self.children
            for name, forward in self.parameters.hostfwd.items():
                children[name].port = found[forward.guest_port]

    def _present(self, partition: str) -> str:
        path = self.validate_partition(partition, use_default_partitions=True)
        # A file that was not flashed is where the machine runs; QEMU itself reports a missing one.
        elsewhere = self.machine_site.launcher and path == self.default_partitions.get(partition)
        return str(path) if elsewhere or path.exists() else ""

    async def _flash(self) -> tuple[str, str] | None:
        """Firmware code and variables; the variables are a copy that this driver keeps."""
        code, variables = self._present("OVMF_CODE.fd"), self._present("OVMF_VARS.fd")
        if not (code and variables):
            return None
        if self.flashed.get("OVMF_VARS.fd"):
            return code, variables
        own = Path(self._tmp_dir.name) / "OVMF_VARS.own.fd"
        if not own.exists() and self.machine_site.launcher:
            await launcher_client.run(self.machine_site.launcher, ("cp", variables, str(own)))
        elif not own.exists():
            shutil.copyfile(variables, own)
        return code, str(own)

    async def _declared(self, name: str, root_size: str | None) -> Disk:
        """A disk as declared by the class, with another size for ``root`` if given."""
        disk = self._disks.get(name) or Disk(name=name)
        root = self.default_partitions.get("root") if name == "root" else None
        if root is not None and disk.base is None:
            found = (await self._images.info(root))["format"]
            disk = disk.model_copy(update={"base": root, "format": found})
        if name == "root" and root_size:
            disk = disk.model_copy(update={"size": sizes.parsed(root_size)})
        return disk

    async def _drives(self) -> tuple[Drive, ...]:
        names = dict.fromkeys(("root", *self._disks))
        found = [await self._drive(await self._declared(name, self.disk_size)) for name in names]
        attached = (
            Drive(
                name=disk.name,
                path=disk.path,
                format=disk.format.value,
                read_only=disk.read_only,
                removable=index > 0 and self.machine_site.lasting,
            )
            for index, disk in enumerate(self.machine_site.disks)
        )
        return (*attached, *(drive for drive in found if drive is not None))

    async def _drive(self, disk: Disk) -> Drive | None:
        if flashed := self.flashed.opened(disk.name):
            await self._grow_flashed(disk, flashed)
            path = str(flashed.path)
            return Drive(name=disk.name, path=path, format=flashed.format, standalone=True)
        if disk.base is None and disk.size is None:
            return None
        overlay = Path(self._tmp_dir.name) / f"{disk.name}.overlay"
        if not overlay.exists():
            await self._images.make_overlay(overlay, disk)
        await self._images.grow(overlay, "qcow2", disk.size)
        return Drive(name=disk.name, path=str(overlay), format="qcow2")

    async def _grow_flashed(self, disk: Disk, flashed: Flashed) -> None:
        if disk.size is not None and flashed.virtual_bytes < disk.size:
            await self._images.resize(flashed.path, flashed.format, disk.size)
            self.flashed.resized(disk.name, disk.size)


def _firmware_partitions(firmware: Firmware | None, site: MachineSite) -> dict[str, Path]:
    if firmware is None:
        return {}
    code = Path(site.path(firmware))
    if firmware.variables is None:
        return {"bios": code}
    return {"OVMF_CODE.fd": code, "OVMF_VARS.fd": Path(site.path(firmware.variables))}
