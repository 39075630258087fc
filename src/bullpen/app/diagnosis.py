"""What this machine lacks to run virtual targets properly, and how to fix it."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bullpen.placements.local import host_sandbox, kvm
from bullpen.placements.local.kvm import VERDICTS, Kvm
from bullpen.placements.local.layout import Layout
from bullpen.provisioners.android import ADB
from bullpen.provisioners.container import PODMAN, RUNC
from bullpen.provisioners.qemu import QEMU_IMG, emulator

MACHINES = ("aarch64", "arm", "riscv64", "x86_64")
LAYERS = {
    "user": "a separate user for each virtual target",
    "files": "a separate file system view for each virtual target",
    "network": "a separate network for each QEMU machine",
    "programs": "bubblewrap around QEMU",
    "limits": "control groups for memory, CPU and processes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check."""

    name: str
    about: str
    problem: str = ""
    remedy: str = ""
    needed: bool = True
    """Whether its absence is an error; otherwise some targets are missing, or slower."""

    @property
    def status(self) -> str:
        if not self.problem:
            return "ok"
        return "missing" if self.needed else "absent"


def examine(data: Path) -> tuple[Finding, ...]:
    """Run all checks. Starts a few programs and takes about a second."""
    return (*_programs(), *_layers(data), _kvm(data))


def _programs() -> Iterator[Finding]:
    machines = [arch for arch in MACHINES if shutil.which(f"qemu-system-{arch}")]
    own = emulator(platform.machine()).package
    yield Finding(
        name="qemu",
        about=f"QEMU for {', '.join(machines)}" if machines else "QEMU, which runs the machines",
        problem="" if machines else "no qemu-system-… is in PATH",
        remedy="" if machines else f"apt-get install {own}",
    )
    found = shutil.which("qemu-img")
    yield Finding(
        name="qemu-img",
        about="qemu-img, which creates disks",
        problem="" if found else "qemu-img is not in PATH",
        remedy="" if found else f"apt-get install {QEMU_IMG.package}",
    )
    lacking = [program for program in (PODMAN, RUNC) if not shutil.which(program.name)]
    yield Finding(
        name="podman",
        about="podman and runc, which run targets that are containers",
        problem=" ".join(f"{program.name} is not in PATH." for program in lacking).rstrip("."),
        remedy=f"apt-get install {' '.join(p.package for p in lacking)}" if lacking else "",
        needed=False,
    )
    found = shutil.which(ADB.name)
    yield Finding(
        name="adb",
        about="adb, which connects to Android devices",
        problem="" if found else f"{ADB.name} is not in PATH",
        remedy="" if found else f"apt-get install {ADB.package}",
        needed=False,
    )


def _layers(data: Path) -> Iterator[Finding]:
    host = host_sandbox.probe(data)
    if host.cgroups is not None:
        host.cgroups.close()
    for layer in host.layers:
        yield Finding(
            name=f"sandbox.{layer.name}",
            about=LAYERS[layer.name],
            problem=layer.problem,
            remedy=layer.remedy,
        )


def _kvm(data: Path) -> Finding:
    about = "KVM, which makes guests of this architecture fast"
    if not kvm.DEVICE.exists():
        return Finding(
            name="kvm",
            about=about,
            problem="there is no /dev/kvm",
            remedy="load the module kvm_intel or kvm_amd, or allow nested virtualization",
            needed=False,
        )
    if not os.access(kvm.DEVICE, os.R_OK | os.W_OK):
        return Finding(
            name="kvm",
            about=about,
            problem="this user may not open /dev/kvm",
            remedy='usermod -aG kvm "$USER", then log in again',
            needed=False,
        )
    problem = asyncio.run(kvm.prove(platform.machine()))
    remedy = "none on this machine: its host does not support nested guests" if problem else ""
    if not problem:
        # The test guest runs, but a machine did not.
        problem = asyncio.run(Kvm(Layout(data).cache).known_problem(platform.machine())) or ""
        remedy = f"delete {Layout(data).cache / VERDICTS} to try KVM again" if problem else ""
    return Finding(name="kvm", about=about, problem=problem, remedy=remedy, needed=False)
