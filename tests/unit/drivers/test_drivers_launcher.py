"""Programs started through the launcher behave as if they had been started here."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bullpen.drivers import launcher, launching
from bullpen.drivers.launching import Launched

SECONDS_MAX = 10.0


@pytest.fixture
def path(tmp_path: Path) -> Iterator[str]:
    """A launcher in a process of its own, run as the file that is copied into images."""
    where = str(tmp_path / "launcher")
    process = subprocess.Popen([sys.executable, "-I", launcher.__file__, where])
    waiting = psutil.Process(process.pid)
    while not Path(where).is_socket() and waiting.is_running():
        pass
    yield where
    process.terminate()
    assert process.wait(SECONDS_MAX) == 0


async def test_what_a_program_prints_comes_back(path: str) -> None:
    assert await launching.run(path, ("echo", "hello")) == b"hello\n"


async def test_a_program_that_fails_says_why(path: str) -> None:
    with pytest.raises(RuntimeError, match="it is broken"):
        await launching.run(path, ("sh", "-c", "echo it is broken >&2; exit 3"))


async def test_a_program_that_is_not_there_is_named(path: str) -> None:
    with pytest.raises(RuntimeError, match="no-such-program cannot be started"):
        await launching.run(path, ("no-such-program",))


async def test_a_launcher_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="runtime does not answer"):
        await launching.run(str(tmp_path / "none"), ("true",))


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


def test_a_program_does_not_outlive_whoever_asked_for_it(path: str, tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        Launched(path, ("sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 60"))
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            pass
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    left = psutil.Process(int((tmp_path / "pid").read_text())) if _lives(tmp_path) else None
    if left is not None:
        left.wait(SECONDS_MAX)


def _lives(directory: Path) -> bool:
    return psutil.pid_exists(int((directory / "pid").read_text()))
