"""KVM counts as working only after a guest ran with it."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import pytest

from bullpen.placements.local import kvm, processes
from bullpen.placements.local.kvm import PROOFS, Kvm, try_guest

needs_x86 = pytest.mark.skipif(
    shutil.which("qemu-system-x86_64") is None, reason="qemu-system-x86 is not installed"
)


@pytest.mark.slow
@pytest.mark.parametrize("arch", [pytest.param("x86_64", marks=needs_x86), "aarch64"])
async def test_the_tiny_guest_runs_where_guests_can_run(arch: str) -> None:
    """Shown with emulation, which always works: a failure with KVM is KVM's."""
    assert await try_guest(arch, accel="tcg") == ""


@pytest.mark.slow
async def test_a_guest_that_does_not_do_its_thing_is_no_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proof = PROOFS["aarch64"]
    idle = kvm.Proof(
        image=bytes.fromhex("00000014"),  # a loop
        machine=proof.machine,
        arguments=proof.arguments,
        exit_code=proof.exit_code,
    )
    monkeypatch.setattr(kvm, "PROOFS", {"aarch64": idle})
    monkeypatch.setattr(kvm, "PROOF_SECONDS_MAX", 0.5)
    assert "did not finish" in await try_guest("aarch64", accel="tcg")
    assert "QEMU ended with 1" in await try_guest("aarch64", accel="nonsense")


async def test_what_nobody_can_try_does_not_work() -> None:
    assert "no test guest" in await try_guest("pdp11", accel="kvm")


async def test_the_answer_is_kept_for_this_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    async def guest(arch: str, *, accel: str) -> str:
        tried.append(f"{arch} {accel}")
        return ""

    arch = platform.machine()
    monkeypatch.setattr(kvm, "try_guest", guest)
    monkeypatch.setattr(kvm, "DEVICE", tmp_path)
    assert await Kvm(tmp_path / "cache").works_for(arch)
    assert await Kvm(tmp_path / "cache").works_for(arch)
    assert tried == [f"{arch} kvm"]
    monkeypatch.setattr(processes, "boot_id", lambda: "another boot")
    assert await Kvm(tmp_path / "cache").works_for(arch)
    assert len(tried) == 2


async def test_guests_of_another_architecture_are_never_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kvm, "DEVICE", tmp_path)
    assert not await Kvm(tmp_path).works_for("pdp11")


async def test_without_the_device_nothing_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kvm, "DEVICE", tmp_path / "absent")
    assert not await Kvm(tmp_path).works_for(platform.machine())
