"""Whether KVM works here, verified by running a guest, not by the existence of a file.

On many machines /dev/kvm exists but guests crash or hang, most of all when the machine is
itself virtual. So a guest of a few bytes is run once per boot of the host; the result is
cached.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bullpen.placements.local import processes

log = logging.getLogger("bullpen.placements")

PROOF_SECONDS_MAX = 10.0
"""A guest of a few instructions needs one second; one that hangs never finishes."""

DEVICE = Path("/dev/kvm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A tiny guest and how to verify that it ran."""

    image: bytes
    machine: str
    arguments: tuple[str, ...]
    exit_code: int


def _boot_sector(code: bytes) -> bytes:
    return code.ljust(510, b"\0") + b"\x55\xaa"


PROOFS: Mapping[str, Proof] = {
    # Loaded by the firmware as a boot sector: writes 0x2a to the debug port, upon which
    # QEMU exits with 0x2a * 2 + 1.
    "x86_64": Proof(
        image=_boot_sector(bytes.fromhex("b02a e6f4 f4 ebfd")),
        machine="pc",
        arguments=(
            "-device",
            "isa-debug-exit,iobase=0xf4,iosize=0x01",
            "-drive",
            "file={image},format=raw,if=ide,snapshot=on",
        ),
        exit_code=0x2A * 2 + 1,
    ),
    # Started as a kernel: asks the machine, by PSCI, to switch itself off.
    "aarch64": Proof(
        image=bytes.fromhex("00 01 80 52  00 80 b0 72  02 00 00 d4  00 00 00 14"),
        machine="virt",
        arguments=("-kernel", "{image}"),
        exit_code=0,
    ),
}


class _Verdict(msgspec.Struct, frozen=True):
    boot: str
    works: dict[str, bool]


class Kvm:
    """Whether KVM works for a guest architecture; checked on first use."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache / "kvm.json"
        self._asking = asyncio.Lock()

    async def works_for(self, arch: str) -> bool:
        async with self._asking:
            known = self._remembered()
            if arch not in known:
                known[arch] = await self._find_out(arch)
                self._remember(known)
            return known[arch]

    async def _find_out(self, arch: str) -> bool:
        if arch != platform.machine() or not os.access(DEVICE, os.R_OK | os.W_OK):
            return False
        problem = await try_guest(arch, accel="kvm")
        log.info("kvm probed", extra={"key": arch, "works": not problem, "cause": problem})
        return not problem

    def _remembered(self) -> dict[str, bool]:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            found = msgspec.json.decode(self._cache.read_bytes(), type=_Verdict)
            if found.boot == processes.boot_id():
                return found.works
        return {}

    def _remember(self, works: dict[str, bool]) -> None:
        self._cache.parent.mkdir(parents=True, exist_ok=True)
        verdict = _Verdict(boot=processes.boot_id(), works=works)
        self._cache.write_bytes(msgspec.json.encode(verdict))


async def try_guest(arch: str, *, accel: str) -> str:
    """Run the tiny guest; returns the error, or an empty string."""
    proof = PROOFS.get(arch)
    program = shutil.which(f"qemu-system-{arch}")
    if proof is None or program is None:
        return f"no test guest for {arch} is available"
    with tempfile.TemporaryDirectory(prefix="bullpen-kvm-") as directory:
        image = Path(directory) / "image"
        image.write_bytes(proof.image)
        arguments = (part.format(image=image) for part in proof.arguments)
        process = await asyncio.create_subprocess_exec(
            program, "-nodefaults", "-display", "none", "-no-reboot",
            "-machine", proof.machine, "-accel", accel, "-cpu", "max", "-m", "64M",
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        return await _outcome(process, proof.exit_code)


async def _outcome(process: asyncio.subprocess.Process, wanted: int) -> str:
    try:
        async with asyncio.timeout(PROOF_SECONDS_MAX):
            _, errors = await process.communicate()
    except TimeoutError:
        return f"the test guest did not finish within {PROOF_SECONDS_MAX:g} s"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode == wanted:
        return ""
    last = errors.decode(errors="replace").strip().rpartition("\n")[2]
    return f"QEMU ended with {process.returncode}: {last}"
