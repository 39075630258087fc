"""Processes are known for sure, and what a lease leaves behind is ended and erased."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bullpen.placements.local import exporter, layout, processes
from bullpen.placements.local.processes import ProcessId


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, with a token and a child."""
    environment = {processes.TOKEN_VARIABLE: str(tmp_path), "PATH": os.environ["PATH"]}
    process = subprocess.Popen(
        # The child reports itself, so that it has left the session when the test begins.
        ["sh", "-c", "setsid sh -c 'echo ready; exec sleep 600' & wait"],
        env=environment,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    processes.kill_instances({str(tmp_path): None})
    process.communicate()


def test_a_process_is_itself_and_no_other_of_its_number() -> None:
    own = processes.identify(os.getpid())

    assert own.alive()
    assert not ProcessId(pid=own.pid, started=own.started + 1, boot=own.boot).alive()
    assert not ProcessId(pid=own.pid, started=own.started, boot="another boot").alive()


def test_one_that_ended_is_not_alive_even_before_it_is_reaped() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        identity = processes.identify(process.pid)
        assert identity.alive()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not identity.alive()


def test_a_token_is_found_in_every_process_that_was_given_it(
    sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    by_token = processes.belonging(sessions=(), tokens={str(tmp_path)})
    by_session = processes.belonging(sessions={sleeper.pid}, tokens=())

    assert len(by_token) == 2
    assert by_session == (sleeper.pid,), "the other one has left it"
    assert processes.bearing(str(tmp_path), by_token) == by_token
    assert processes.bearing("other", by_token) == ()


def test_killing_instances_ends_all_of_theirs_and_nobody_else(
    sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    bystander = subprocess.Popen(["sleep", "600"])
    stale = ProcessId(pid=bystander.pid, started=1, boot=processes.boot_id())

    assert processes.kill_instances({str(tmp_path): stale}) == 2
    assert sleeper.wait(5) == -signal.SIGKILL
    assert bystander.poll() is None, "its number is not its identity"
    bystander.kill()
    bystander.wait()


async def test_a_reset_ends_and_erases_what_is_left(
    sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    left = tmp_path / "tmp"
    (left / "deep" / "er").mkdir(parents=True)
    (left / "file").write_text("x")
    (left / "link").symlink_to(tmp_path)

    assert await exporter.reset(left, token=str(tmp_path)) == ""
    assert sleeper.wait(5) == -signal.SIGKILL
    assert list(left.iterdir()) == []
    assert tmp_path.exists()


async def test_a_reset_that_fails_says_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stuck").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(layout, "wipe", lambda path: None)
        assert "stuck" in await exporter.reset(tmp_path, token="t")
    monkeypatch.setattr(exporter, "RESET_LOOK_SECONDS", 0)
    monkeypatch.setattr(processes, "kill_others", lambda token: (4711,))
    assert "4711" in await exporter.reset(tmp_path, token="t")
