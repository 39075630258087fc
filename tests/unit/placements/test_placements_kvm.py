"""KVM counts as working only after a guest did with it what kernels do."""

from __future__ import annotations

import asyncio
import platform
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from bullpen.app import diagnosis
from bullpen.core.targets.exporter_config import Connection
from bullpen.core.targets.profiles import Profile
from bullpen.kit.clock import SystemClock
from bullpen.kit.ids import RandomIds
from bullpen.placements.base import InstanceSpec, Key, Needs, Site, Workload
from bullpen.placements.local import kvm, layout
from bullpen.placements.local.capacity import host_limits
from bullpen.placements.local.connection import ZygoteSettings
from bullpen.placements.local.kvm import GuestRun, Kvm, prove, try_guest
from bullpen.placements.local.local_instance import LocalInstance
from bullpen.placements.local.placement import LocalPlacement, LocalSettings
from bullpen.placements.local.proof_guests import GUESTS
from bullpen.placements.local.wire import KvmFailed

SOURCES = Path(__file__).parents[2] / "support" / "proof_guests"

needs_x86 = pytest.mark.skipif(
    shutil.which("qemu-system-x86_64") is None, reason="qemu-system-x86 is not installed"
)


def assembled(arch: str, directory: Path) -> bytes:
    """The image of the source of a test guest; skips without its assembler."""
    source, built, image = f"{SOURCES}/{arch}.S", f"{directory}/guest.o", f"{directory}/guest"
    commands = {
        "x86_64": (
            ["as", "--64", "-o", built, source],
            ["ld", "-m", "elf_x86_64", "-Ttext", "0x100000", "-e", "0x100000",
             "--oformat", "binary", "-o", image, built],
        ),
        "aarch64": (
            ["llvm-mc", "-triple=aarch64", "-filetype=obj", "-o", built, source],
            ["llvm-objcopy", "-O", "binary", "-j", ".text", built, image],
        ),
    }[arch]  # fmt: skip
    for command in commands:
        if shutil.which(command[0]) is None:
            pytest.skip(f"{command[0]} is not installed")
        subprocess.run(command, check=True)
    return Path(image).read_bytes()


@pytest.mark.parametrize("arch", sorted(GUESTS))
def test_the_image_of_a_test_guest_is_what_its_source_assembles_to(
    arch: str, tmp_path: Path
) -> None:
    assert GUESTS[arch].image == assembled(arch, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("arch", [pytest.param("x86_64", marks=needs_x86), "aarch64"])
async def test_the_test_guest_goes_through_all_steps_where_guests_can_run(arch: str) -> None:
    """Shown with emulation, which always works: a failure with KVM is KVM's."""
    assert await try_guest(arch, accel="tcg") == GuestRun("", "".join(GUESTS[arch].steps))


@pytest.mark.slow
async def test_a_guest_that_hangs_or_cannot_start_is_no_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    idle = replace(GUESTS["aarch64"], image=bytes.fromhex("00000014"))  # a loop
    monkeypatch.setattr(kvm, "GUESTS", {"aarch64": idle})
    monkeypatch.setattr(kvm, "PROOF_SECONDS_MAX", 0.5)
    assert "did not finish" in (await try_guest("aarch64", accel="tcg")).problem
    assert "QEMU ended with 1" in (await try_guest("aarch64", accel="nonsense")).problem


@pytest.mark.slow
async def test_a_guest_without_timer_interrupts_is_no_proof_and_the_step_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The virtual timer is never switched on, as with a host that loses its interrupts."""
    guest = GUESTS["aarch64"]
    start_timer = bytes.fromhex("29e31bd5")  # msr cntv_ctl_el0, x9
    assert guest.image.count(start_timer) == 1
    nop = bytes.fromhex("1f2003d5")
    deaf = replace(guest, image=guest.image.replace(start_timer, nop))
    monkeypatch.setattr(kvm, "GUESTS", {"aarch64": deaf})
    monkeypatch.setattr(kvm, "PROOF_SECONDS_MAX", 2.0)
    run = await try_guest("aarch64", accel="tcg")
    assert run.output == "PMF"
    assert "missing: interrupts of the virtual timer" in run.problem


async def test_an_architecture_without_a_test_guest_does_not_work() -> None:
    assert "no test guest" in (await try_guest("pdp11", accel="kvm")).problem


@pytest.mark.parametrize(
    ("emulated", "run", "problem"),
    [
        pytest.param(GuestRun("", "PM"), GuestRun("", "PM"), "", id="as with emulation"),
        pytest.param(GuestRun("", "PM"), GuestRun("hung", "P"), "hung", id="it hangs"),
        pytest.param(
            GuestRun("", "PM"),
            GuestRun("", "PP"),
            "the test guest printed 'PP', and 'PM' with emulation",
            id="it does something else",
        ),
        pytest.param(
            GuestRun("no firmware"),
            GuestRun("", "PM"),
            "the test guest does not run with emulation either: no firmware",
            id="nothing runs",
        ),
    ],
)
async def test_kvm_must_do_what_emulation_does(
    emulated: GuestRun, run: GuestRun, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def guest(arch: str, *, accel: str) -> GuestRun:
        return {"tcg": emulated, "kvm": run}[accel]

    monkeypatch.setattr(kvm, "try_guest", guest)
    assert await prove("x86_64") == problem


class Host:
    """A host with KVM whose name, QEMU and KVM are played."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.name, self.qemu, self.problem, self.proofs = "a 6.1", "QEMU 7.2", "", 0
        self.cache = tmp_path / "cache"
        monkeypatch.setattr(kvm, "DEVICE", tmp_path)
        monkeypatch.setattr(kvm, "prove", self._prove)
        monkeypatch.setattr(kvm, "qemu_version", self._version)
        monkeypatch.setattr(kvm, "host_name", lambda: self.name)

    async def _prove(self, arch: str) -> str:
        self.proofs += 1
        return self.problem

    async def _version(self, arch: str) -> str:
        return self.qemu

    async def works(self) -> bool:
        return await Kvm(self.cache).works_for(platform.machine())


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


async def test_the_verdict_is_kept_for_this_host_and_this_version_of_qemu(host: Host) -> None:
    assert await host.works()
    assert await host.works()
    assert host.proofs == 1
    host.problem = "the test guest did not finish within 10 s"
    host.qemu = "QEMU 8.0"
    assert not await host.works()
    assert not await host.works()
    assert host.proofs == 2
    host.name, host.problem = "a 6.8", ""
    assert await host.works()
    assert host.proofs == 3


async def test_kvm_that_failed_a_machine_is_not_used_again_until_qemu_changes(
    host: Host, tmp_path: Path
) -> None:
    """As an exporter reports it: the test guest passed, a machine was silent."""
    assert await host.works()
    settings = LocalSettings(data=tmp_path, limits=host_limits(), zygote=ZygoteSettings())
    placement = LocalPlacement(settings, clock=SystemClock(), ids=RandomIds())
    arch = platform.machine()
    async with placement.running():
        placement._heard(KvmFailed(key=("lab", "a"), arch=arch, problem="it was silent"))
    assert not await host.works()
    assert host.proofs == 1
    host.qemu = "QEMU 8.0"
    assert await host.works()


async def test_a_machine_that_runs_without_kvm_for_a_fault_of_the_host_says_so(
    host: Host, tmp_path: Path
) -> None:
    settings = LocalSettings(data=tmp_path, limits=host_limits(), zygote=ZygoteSettings())
    placement = LocalPlacement(settings, clock=SystemClock(), ids=RandomIds())
    arch, told = platform.machine(), list[Key]()
    placement.listen(told.append)
    workload = Workload(
        spec=InstanceSpec(
            key=("lab", "a"),
            owner_uid="u",
            profile=Profile(provisioner="p"),
            connection=Connection(endpoint="", token="", ca_pem=""),
        ),
        needs=Needs(kvm_for=arch, memory_bytes=0, cpus=0.0),
        export=lambda site: {},
    )
    state = layout.state_of(workload, token="t", user=0)
    local = LocalInstance(state, tmp_path / "a", detail="")
    async with placement.running():
        placement._instances[local.key] = local
        assert await host.works()
        await placement._warn_without_kvm(local, workload, Site(artifacts={}, kvm=True))
        assert local.instance.warning == ""
        placement._heard(KvmFailed(key=local.key, arch=arch, problem="it was silent"))
        assert local.instance.warning == kvm.unused("it was silent")
        assert told == [local.key]
        del placement._instances[local.key]
    later = LocalInstance(state, tmp_path / "b", detail="")
    assert not await host.works()
    await placement._warn_without_kvm(later, workload, Site(artifacts={}, kvm=False))
    assert later.instance.warning == kvm.unused("it was silent")


async def test_the_doctor_names_what_failed_with_kvm_and_how_to_try_it_again(
    host: Host, tmp_path: Path
) -> None:
    await Kvm(host.cache).distrust(platform.machine(), "it was silent")
    finding = await asyncio.to_thread(diagnosis._kvm, tmp_path)
    assert finding.problem == "it was silent"
    assert finding.remedy == f"delete {host.cache}/kvm.json to try KVM again"
    (host.cache / kvm.VERDICTS).unlink()
    assert (await asyncio.to_thread(diagnosis._kvm, tmp_path)).status == "ok"


async def test_a_verdict_that_cannot_be_kept_is_still_a_verdict(host: Host) -> None:
    host.cache.write_text("a file in the place of the directory")
    host.problem = "it hangs"
    assert not await host.works()


async def test_an_unreadable_verdict_is_found_out_again(host: Host) -> None:
    host.cache.mkdir()
    (host.cache / kvm.VERDICTS).write_text('{"boot": "earlier", "works": {"x86_64": true}}')
    host.problem = "it hangs"
    assert not await host.works()
    assert host.proofs == 1


@needs_x86
async def test_the_version_of_qemu_is_what_it_prints() -> None:
    assert (await kvm.qemu_version("x86_64")).startswith("QEMU emulator version ")
    assert await kvm.qemu_version("pdp11") == ""


async def test_guests_of_another_architecture_are_never_asked(host: Host) -> None:
    assert not await Kvm(host.cache).works_for("pdp11")
    assert host.proofs == 0


async def test_without_the_device_nothing_is_tried(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kvm, "DEVICE", tmp_path / "absent")
    assert not await host.works()
    assert host.proofs == 0
