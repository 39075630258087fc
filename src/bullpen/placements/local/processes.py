"""Linux processes: their identity, their descendants, and death signals.

A pid alone is reused over time; together with the start time and the boot id it identifies
one process for ever.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import msgspec

TOKEN_VARIABLE = "BULLPEN_INSTANCE"
"""Environment variable of every process of an instance, which identifies the instance."""

OOM_SCORE = 500
"""When memory runs out, the kernel kills instances before the service that replaces them."""

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

_EXITING = 0x4
"""A kernel flag: the process no longer runs, but has not released its resources yet."""

_PROC = Path("/proc")
_STATE, _SESSION, _FLAGS, _START_TIME = 0, 3, 6, 19
"""Fields of /proc/PID/stat, counted from the one after the command's name."""


class ProcessId(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of one process, valid for ever."""

    pid: int
    started: int
    """Clock ticks since boot."""

    boot: str

    def alive(self) -> bool:
        return self.boot == boot_id() and _start_time(self.pid) == self.started


def identify(pid: int) -> ProcessId:
    """The identity of ``pid``, which no later process will have."""
    return ProcessId(pid=pid, started=_start_time(pid) or 0, boot=boot_id())


def boot_id() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def _start_time(pid: int) -> int | None:
    fields = _stat(pid)
    return int(fields[_START_TIME]) if fields else None


def _stat(pid: int) -> list[str]:
    """The fields after the name in the stat line; empty when it ended, reaped or not."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return []
    fields = text.rpartition(")")[2].split()
    return [] if fields[_STATE] in "ZX" else fields


def busy(pid: int) -> bool:
    """Whether it runs, waits for a processor, or waits for a disk, and so may go on by itself."""
    fields = _stat(pid)
    return bool(fields) and fields[_STATE] in "RD"


def belonging(*, sessions: Collection[int], tokens: Collection[str]) -> tuple[int, ...]:
    """Every process in one of these sessions or executed with one of these tokens."""
    return tuple(
        pid
        for pid in _pids()
        if (fields := _stat(pid)) and (int(fields[_SESSION]) in sessions or _token(pid) in tokens)
    )


def bearing(token: str, among: tuple[int, ...]) -> tuple[int, ...]:
    """The processes that were executed with ``token`` in their environment."""
    return tuple(pid for pid in among if _token(pid) == token)


def exiting(among: Collection[int]) -> tuple[int, ...]:
    """The processes that are exiting: their environment can no longer be read.

    The kernel takes a while to release namespaces.
    """
    return tuple(pid for pid in among if (fields := _stat(pid)) and int(fields[_FLAGS]) & _EXITING)


def _token(pid: int) -> str:
    start = f"{TOKEN_VARIABLE}=".encode()
    try:
        variables = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    found = next((item for item in variables if item.startswith(start)), b"")
    return found.removeprefix(start).decode(errors="replace")


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())


def own_children() -> tuple[int, ...]:
    """Direct children of this process' only thread."""
    pid = os.getpid()
    return tuple(map(int, (_PROC / f"{pid}/task/{pid}/children").read_text().split()))


def kill_instances(leaders: Mapping[str, ProcessId | None]) -> int:
    """SIGKILL the remaining processes of instances, given by token; returns their number.

    For callers that are not their parent. While a leader lives, its session belongs to the
    instance; once it is gone, only the token identifies its processes. Processes that are
    already exiting are counted, not killed.
    """
    sessions = {leader.pid for leader in leaders.values() if leader and leader.alive()}
    found = belonging(sessions=sessions, tokens=leaders)
    for pid in found:
        kill(pid, signal.SIGKILL)
    pids = {leader.pid for leader in leaders.values() if leader}
    ending = exiting(belonging(sessions=pids, tokens=()))
    return len({*found, *ending})


def kill_others(token: str) -> tuple[int, ...]:
    """SIGKILL all processes of this instance except this one, its leader; returns them."""
    own = os.getpid()
    found = tuple(pid for pid in belonging(sessions={own}, tokens={token}) if pid != own)
    for pid in found:
        kill(pid, signal.SIGKILL)
    return found


def kill(pid: int, number: signal.Signals) -> None:
    """Signal a process that may have ended meanwhile."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def kill_group(leader: int, number: signal.Signals) -> bool:
    """Signal a process group; returns whether it had any members."""
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        return False
    return True


def die_with_parent(number: signal.Signals) -> None:
    """Receive ``number`` when the parent ends, however it ends."""
    _prctl(_PR_SET_PDEATHSIG, number)


def outlive_parent() -> None:
    """Receive no signal when the parent ends: this process already knows."""
    _prctl(_PR_SET_PDEATHSIG, 0)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ended."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def call_self(name: str) -> None:
    """The name that ``ps`` and ``top`` show; Linux keeps fifteen bytes."""
    _prctl(_PR_SET_NAME, ctypes.create_string_buffer(name.encode()[:15]))


def go_first_when_memory_is_short() -> None:
    (_PROC / "self/oom_score_adj").write_text(str(OOM_SCORE))


def _prctl(option: int, argument: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, argument, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl {option}: {os.strerror(number)}")
