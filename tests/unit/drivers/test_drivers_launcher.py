"""Programs started through the launcher behave as if they had been started here."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bullpen.drivers import launcher, launcher_client
from bullpen.drivers.launcher_client import Launched
from bullpen.drivers.qemu import Qemu

SECONDS_MAX = 10.0


@pytest.fixture
def path(tmp_path: Path) -> Iterator[str]:
    """A launcher in a process of its own, run as the file that is copied into images."""
    where = str(tmp_path / "launcher")
    process = subprocess.Popen([sys.executable, "-I", launcher.__file__, where])
    while not Path(where).is_socket():
        assert process.poll() is None
        time.sleep(0.01)
    yield where
    process.terminate()
    assert process.wait(SECONDS_MAX) == 0


async def test_what_a_program_prints_comes_back(path: str) -> None:
    assert await launcher_client.run(path, ("echo", "hello")) == b"hello\n"


async def test_a_program_that_fails_says_why(path: str) -> None:
    with pytest.raises(RuntimeError, match="it is broken"):
        await launcher_client.run(path, ("sh", "-c", "echo it is broken >&2; exit 3"))


async def test_a_program_that_is_not_there_is_named(path: str) -> None:
    with pytest.raises(RuntimeError, match="no-such-program cannot be started"):
        await launcher_client.run(path, ("no-such-program",))


async def test_a_launcher_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="runtime does not answer"):
        await launcher_client.run(str(tmp_path / "none"), ("true",))


def test_descriptors_have_the_numbers_they_have_here(path: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        number = theirs.fileno()
        line = ("bash", "-c", f"read -r word <&{number}; echo got $word >&{number}")
        program = Launched(path, line, {number: number})
        theirs.close()
        ours.sendall(b"this\n")
        assert ours.recv(100) == b"got this\n"
        assert program.wait(SECONDS_MAX) == 0
        program.stderr.close()


def test_no_other_descriptor_reaches_a_program(path: str) -> None:
    program = Launched(path, ("sh", "-c", "ls -l /proc/self/fd >&2"))
    with program.stderr as said:
        listed = [line for line in said.read().decode().splitlines() if " -> " in line]
    assert program.wait(SECONDS_MAX) == 0
    # Standard error, and the directory that ls reads; stdin and stdout were not handed over.
    assert not [line for line in listed if "socket" in line]


def test_signals_are_passed_on_and_the_end_is_told(path: str) -> None:
    program = Launched(path, ("sleep", "60"))
    with program.stderr:
        assert program.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            program.wait(0.01)
        program.terminate()
        assert program.wait(SECONDS_MAX) == -signal.SIGTERM
        assert program.poll() == -signal.SIGTERM
        program.kill()


def test_a_program_does_not_outlive_whoever_asked_for_it(path: str) -> None:
    script = (
        "import sys\n"
        "from bullpen.drivers.launcher_client import Launched\n"
        "program = Launched(sys.argv[1], ('sh', '-c', 'echo $$ >&2; exec sleep 60'))\n"
        "print(program.stderr.readline().decode())\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", script, path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(done.stdout)).wait(SECONDS_MAX)


async def test_firmware_is_looked_for_where_the_machine_runs(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exporter's own image has none, and must not conclude that there is none."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (variables := tmp_path / "vars.fd").write_bytes(b"variables")
    machine = Qemu(  # type: ignore[abstract]
        arch="aarch64",
        default_partitions={"OVMF_CODE.fd": Path("/elsewhere/code.fd"), "OVMF_VARS.fd": variables},
        site={"launcher": path},
    )
    made = await machine.machine(qmp=3, serial=4, cidata="")
    assert made.flash is not None
    code, own = made.flash
    assert code == "/elsewhere/code.fd"
    assert Path(own) != variables
    assert Path(own).read_bytes() == b"variables"
    machine.close()
