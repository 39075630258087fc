"""Whether KVM works here, verified by running a guest, not by the existence of a file.

On many machines /dev/kvm exists but guests crash or hang, most of all when the machine is
itself virtual. There, a few instructions in real mode may run while every kernel hangs. So
the test guest does what a kernel does while it boots, and does it with emulation first: a
guest that fails there too proves nothing about KVM. The verdict is kept for this host, its
kernel and this version of QEMU.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import shutil
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bullpen.placements.local.proof_guests import GUESTS, ProofGuest

log = logging.getLogger("bullpen.placements")

PROOF_SECONDS_MAX = 10.0
"""A test guest needs less than a second; one that hangs never finishes."""

VERSION_SECONDS_MAX = 5.0

DEVICE = Path("/dev/kvm")

VERDICTS = "kvm.json"
"""Name of the file with the verdicts, in the cache directory."""

CPUS = {"kvm": "host", "tcg": "max"}
"""CPU models of the test guest; with KVM that of the machines."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether KVM works for guests of one architecture."""

    host: str
    qemu: str
    problem: str
    """Empty if it works."""


class Kvm:
    """Whether KVM works for a guest architecture; checked on first use."""

    def __init__(self, cache: Path) -> None:
        self._file = cache / VERDICTS
        self._asking = asyncio.Lock()

    async def works_for(self, arch: str) -> bool:
        if arch != platform.machine() or not os.access(DEVICE, os.R_OK | os.W_OK):
            return False
        async with self._asking:
            problem = await self.known_problem(arch)
            if problem is None:
                problem = await prove(arch)
                log.info("kvm probed", extra={"key": arch, "works": not problem, "cause": problem})
                await self._remember(arch, problem)
            return not problem

    async def known_problem(self, arch: str) -> str | None:
        """The verdict for this host and QEMU, empty if KVM works; None if there is none yet."""
        verdict = self._verdicts().get(arch)
        if verdict is None or (verdict.host, verdict.qemu) != await _situation(arch):
            return None
        return verdict.problem

    async def distrust(self, arch: str, problem: str) -> None:
        """A machine worked with emulation and not with KVM: no machine gets KVM any more."""
        async with self._asking:
            log.warning("kvm failed", extra={"key": arch, "cause": problem})
            await self._remember(arch, problem)

    def _verdicts(self) -> dict[str, Verdict]:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode(self._file.read_bytes(), type=dict[str, Verdict])
        return {}

    async def _remember(self, arch: str, problem: str) -> None:
        host, qemu = await _situation(arch)
        verdict = Verdict(host=host, qemu=qemu, problem=problem)
        verdicts = {**self._verdicts(), arch: verdict}
        temporary = self._file.with_suffix(".new")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(msgspec.json.encode(verdicts))
            temporary.replace(self._file)
        except OSError as error:
            # The next machine finds it out again.
            log.warning("kvm verdict not kept", extra={"key": self._file, "cause": error})


def unused(problem: str) -> str:
    """What operators are told of machines that run without KVM although there is a device."""
    return f"KVM does not work on this host, so machines run with emulation, slower: {problem}"


async def _situation(arch: str) -> tuple[str, str]:
    """What a verdict is valid for: the host and its QEMU."""
    return host_name(), await qemu_version(arch)


def host_name() -> str:
    """This host and its kernel: another kernel may have another KVM."""
    return f"{platform.node()} {platform.release()} {platform.version()}"


async def qemu_version(arch: str) -> str:
    """The first line that QEMU prints about its version; empty if it prints none."""
    program = shutil.which(f"qemu-system-{arch}")
    if program is None:
        return ""
    with contextlib.suppress(OSError, TimeoutError):
        process = await asyncio.create_subprocess_exec(
            program, "--version",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        async with _bounded(process, VERSION_SECONDS_MAX):
            output, _ = await process.communicate()
            return output.decode(errors="replace").partition("\n")[0].strip()
    return ""


async def prove(arch: str) -> str:
    """Why KVM is not to be used for guests of ``arch``; empty if the test guest ran as emulated."""
    emulated = await try_guest(arch, accel="tcg")
    if emulated.problem:
        return f"the test guest does not run with emulation either: {emulated.problem}"
    run = await try_guest(arch, accel="kvm")
    if run.problem or run.output == emulated.output:
        return run.problem
    return f"the test guest printed {run.output!r}, and {emulated.output!r} with emulation"


@dataclass(frozen=True, slots=True)
class GuestRun:
    """A run of the test guest."""

    problem: str
    """Empty if it reached its end."""

    output: str = ""


async def try_guest(arch: str, *, accel: str) -> GuestRun:
    guest = GUESTS.get(arch)
    program = shutil.which(f"qemu-system-{arch}")
    if guest is None or program is None:
        return GuestRun(f"no test guest for {arch} is available")
    with tempfile.TemporaryDirectory(prefix="bullpen-kvm-") as directory:
        image, output = Path(directory) / "image", Path(directory) / "output"
        image.write_bytes(guest.image)
        output.touch()
        process = await asyncio.create_subprocess_exec(
            program, "-nodefaults", "-display", "none", "-no-reboot",
            "-machine", guest.machine, "-accel", accel, "-cpu", CPUS.get(accel, "max"),
            "-m", "64M", "-kernel", str(image),
            *(part.format(output=output) for part in guest.arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        problem = await _outcome(process, guest.exit_code)
        written = output.read_text(errors="replace")
    return GuestRun(_described(guest, problem, written), written)


async def _outcome(process: asyncio.subprocess.Process, wanted: int) -> str:
    try:
        async with _bounded(process, PROOF_SECONDS_MAX):
            _, errors = await process.communicate()
    except TimeoutError:
        return f"the test guest did not finish within {PROOF_SECONDS_MAX:g} s"
    if process.returncode == wanted:
        return ""
    last = errors.decode(errors="replace").strip().rpartition("\n")[2]
    return f"QEMU ended with {process.returncode}: {last}"


@contextlib.asynccontextmanager
async def _bounded(process: asyncio.subprocess.Process, seconds: float) -> AsyncIterator[None]:
    """Wait for the process in here; it does not outlive this context."""
    try:
        async with asyncio.timeout(seconds):
            yield
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _described(guest: ProofGuest, problem: str, written: str) -> str:
    """The problem, with the step that the guest did not complete."""
    missed = guest.missed(written)
    if not problem:
        return f"the test guest ended without {missed}" if missed else ""
    return f"{problem} (missing: {missed})" if written and missed else problem
