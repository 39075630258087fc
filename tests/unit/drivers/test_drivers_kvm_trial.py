"""A machine that shows no sign of life with KVM is started again with emulation."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jumpstarter.common.utils import serve

from bullpen.drivers import kvm_trial
from bullpen.drivers.kvm_trial import is_alive, speaks
from bullpen.drivers.qemu_command import Machine
from bullpen.drivers.qemu_parameters import QemuParameters
from bullpen.drivers.target_files import File
from bullpen.placements.local.proof_guests import GUESTS
from support.qemu_machine import make

SEABIOS = b"\x1bc\x1b[?7l\x1b[2JSeaBIOS (version 1.16.2-debian-1.16.2-1)\r\n"
WAIT_SECONDS_MAX = 60.0


@pytest.mark.parametrize(
    ("output", "alive"),
    [
        pytest.param(b"", False, id="silence"),
        pytest.param(SEABIOS, False, id="firmware alone"),
        pytest.param(SEABIOS + b"\r\nBooting from ROM..", False, id="firmware starts a kernel"),
        pytest.param(SEABIOS + b"Booting from ROM...\r\n", False, id="with the end of the line"),
        pytest.param(SEABIOS + b"Booting from ROM..\x1bc[    0.0", True, id="a kernel after it"),
        pytest.param(b"[    0.000000] Booting Linux on", True, id="a kernel without firmware"),
    ],
)
def test_what_counts_as_a_sign_of_life(output: bytes, alive: bool) -> None:
    assert is_alive(output) is alive


@pytest.mark.parametrize(
    ("append", "flashed", "known"),
    [
        pytest.param("quiet console=ttyS0,115200", "", True, id="a kernel with a serial console"),
        pytest.param("console=tty0", "", False, id="a kernel with a screen"),
        pytest.param("console=ttyS0", "/flashed", False, id="a kernel of the lessee"),
    ],
)
def test_only_a_kernel_of_the_class_that_prints_is_expected_to(
    append: str, flashed: str, known: bool
) -> None:
    wanted = QemuParameters(kernel=File(path="/vmlinuz"), append=append)
    machine = Machine(parameters=wanted, arch="x86_64", flashed_kernel=flashed, qmp=3, serial=4)
    assert speaks(machine) is known


class PlayedKvm:
    """A QEMU whose KVM is played: emulation with another kernel, or an error."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.starts = directory / "starts"
        self.reported: list[tuple[str, str]] = []
        self.told = threading.Event()
        real = shutil.which("qemu-system-aarch64")
        (directory / "silent").write_bytes(bytes.fromhex("00000014"))  # a loop
        (directory / "prints").write_bytes(self._printing())
        (directory / "bin").mkdir()
        script = directory / "bin" / "qemu-system-aarch64"
        script.write_text(f"""#!/bin/sh
case "$*" in *"-accel kvm"*) echo kvm >> {self.starts}; . {directory}/kvm;; esac
echo tcg >> {self.starts}
exec {real} "$@"
""")
        script.chmod(0o755)
        path = f"{directory}/bin:{Path(str(real)).parent}:/usr/bin:/bin"
        monkeypatch.setenv("PATH", path)
        monkeypatch.setattr(kvm_trial, "LIFE_SECONDS_MAX", 2.0)
        kvm_trial.report_to(self._report)

    def _printing(self) -> bytes:
        """The test guest, which halts at its end instead of switching itself off."""
        switch_off, halt = bytes.fromhex("020000d4"), bytes.fromhex("7f2003d5")
        image = GUESTS["aarch64"].image
        assert image.count(switch_off) == 1
        return image.replace(switch_off, halt)

    def _report(self, arch: str, problem: str) -> None:
        self.reported.append((arch, problem))
        self.told.set()

    def fails(self) -> None:
        (self.directory / "kvm").write_text("echo failed to set MSR 0x10a >&2; exit 134\n")

    def runs(self, kernel: str) -> None:
        real = shutil.which("qemu-system-aarch64", path="/usr/bin:/bin:/usr/local/bin")
        (self.directory / "kvm").write_text(
            f"""for word; do shift; case "$word" in
    kvm) word=tcg;; host) word=max;; */prints) word={self.directory}/{kernel};; esac
    set -- "$@" "$word"; done
exec {real} "$@"
"""
        )

    def machine(self, kernel: str = "prints", **config: Any) -> Any:
        target = {
            "arch": "aarch64",
            "kernel": {"path": str(self.directory / kernel)},
            "append": "console=ttyAMA0",
        }
        return make(target=target, site={"kvm": True, "arch": "aarch64"}, **config)

    def started(self) -> list[str]:
        return self.starts.read_text().split()


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlayedKvm]:
    if shutil.which("qemu-system-aarch64") is None:
        pytest.skip("qemu-system-arm is not installed")
    yield PlayedKvm(tmp_path, monkeypatch)
    kvm_trial.report_to(None)


@pytest.mark.slow
def test_a_machine_that_is_silent_with_kvm_runs_with_emulation_and_that_is_reported(
    played: PlayedKvm,
) -> None:
    played.runs("silent")
    driver = played.machine()
    with serve(driver) as client:
        client.power.on()
        assert played.told.wait(WAIT_SECONDS_MAX)
        with client.console.pexpect() as console:
            console.expect("PMFI", timeout=WAIT_SECONDS_MAX)
    assert played.started() == ["kvm", "tcg"]
    problem = "a machine printed nothing for 2 s with KVM, and did with emulation"
    assert played.reported == [("aarch64", problem)]
    with serve(played.machine()) as client:
        client.power.on()
    assert played.started() == ["kvm", "tcg", "tcg"], "this exporter does not try KVM again"


@pytest.mark.slow
def test_a_machine_that_qemu_cannot_start_with_kvm_runs_with_emulation(played: PlayedKvm) -> None:
    played.fails()
    with serve(played.machine()) as client:
        client.power.on()
        with client.console.pexpect() as console:
            console.expect("PMFI", timeout=WAIT_SECONDS_MAX)
    assert played.started() == ["kvm", "tcg"]
    [(arch, problem)] = played.reported
    assert arch == "aarch64"
    assert "failed to set MSR 0x10a" in problem


@pytest.mark.slow
def test_a_machine_that_prints_with_kvm_keeps_it(played: PlayedKvm) -> None:
    played.runs("prints")
    with serve(played.machine()) as client:
        client.power.on()
        with client.console.pexpect() as console:
            console.expect("PMFI", timeout=WAIT_SECONDS_MAX)
            with pytest.raises(Exception, match="Timeout"):
                console.expect("PMFI", timeout=4)
    assert played.started() == ["kvm"]
    assert played.reported == []


@pytest.mark.slow
def test_a_machine_that_is_silent_in_both_ways_does_not_blame_kvm(played: PlayedKvm) -> None:
    played.runs("silent")
    said = threading.Event()

    class Heard:
        def filter(self, record: Any) -> bool:
            if "KVM is not the cause" in record.getMessage():
                said.set()
            return True

    driver = played.machine("silent")
    driver.children["power"].logger.addFilter(Heard())
    with serve(driver) as client:
        client.power.on()
        assert said.wait(WAIT_SECONDS_MAX)
    assert played.started() == ["kvm", "tcg"]
    assert played.reported == []
