"""A fresh fork before it is an exporter: it leaves the zygote and gives up access to the host.

The order matters. Limits and namespaces come first, while the process has the rights to set
them; then the view of files; then the thread in the machine's network; rights are dropped
last.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import socket
import stat
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from bullpen.drivers import linux, sandbox
from bullpen.drivers.sandbox import NetworkRoom, Sandbox
from bullpen.placements.local import cgroups, exporter, layout, processes
from bullpen.placements.local.confinement import (
    OPEN_FILES_MAX,
    PRIVATE_PLACES,
    PROCESSES_MAX,
    Confinement,
    covered,
    outermost,
)
from bullpen.placements.local.wire import Spawn

_FOREIGN = ("JMP_", "JUMPSTARTER_")
"""Prefixes of environment variables of the service that an exporter must not inherit."""

ORPHAN_STOP_SECONDS_MAX = 10.0
"""An exporter whose zygote is gone stops itself; after this time it kills itself."""

KVM = "/dev/kvm"

EMPTY_OPTIONS = "mode=0755,size=1m,nr_inodes=8192"

EVERYONE_ENTERS = stat.S_IXOTH


def become(spawn: Spawn, *, printed: int, report: socket.socket, zygote: int) -> NoReturn:
    """Turn this fork into the exporter ``spawn`` describes. Ends the process."""
    code = 1
    try:
        _settle(spawn, printed, zygote)
        exporter.run(spawn, report, on_orphaned=_end_anyway)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Not exit(): the exit handlers of the zygote must not run in the fork.
        os._exit(code)


def _settle(spawn: Spawn, printed: int, zygote: int) -> None:
    os.setsid()
    processes.die_with_parent(signal.SIGTERM)
    if os.getppid() != zygote:
        raise SystemExit("the zygote ended first")
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    # A retirement that arrives before the exporter can handle it stays pending.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    processes.call_self(f"bp-{spawn.key[1]}")
    processes.go_first_when_memory_is_short()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (printed, 1), (printed, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(printed)
    os.umask(0o022)
    _make_runtime(spawn)
    if spawn.confinement is not None:
        own = Own(Path(spawn.directory), Path(spawn.runtime))
        confine(spawn.confinement, own)
        # The kernel clears this setting when a process changes its user.
        processes.die_with_parent(signal.SIGTERM)
        if os.getppid() != zygote:
            raise SystemExit("the zygote ended first")
    os.umask(0o077)
    os.chdir(spawn.directory)
    _set_environment(spawn)
    _log_to_standard_error()


def _make_runtime(spawn: Spawn) -> None:
    runtime = Path(spawn.runtime)
    runtime.mkdir(mode=layout.PRIVATE)
    if spawn.confinement is not None and spawn.confinement.user:
        os.chown(runtime, spawn.confinement.user, spawn.confinement.user)


def _set_environment(spawn: Spawn) -> None:
    environment = os.environ  # noqa: TID251 - this is where an exporter's own is made
    for name in tuple(environment):
        if name.startswith(_FOREIGN):
            del environment[name]
    environment[processes.TOKEN_VARIABLE] = spawn.token
    environment["TMPDIR"] = str(Path(spawn.directory) / layout.TEMPORARY)
    environment["XDG_RUNTIME_DIR"] = spawn.runtime
    tempfile.tempdir = None


def _log_to_standard_error() -> None:
    logging.Formatter.converter = time.gmtime
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s",
        datefmt="%FT%T",
        force=True,
    )


def _end_anyway() -> None:
    """The zygote is gone; its janitor removes what is left, also of a hanging exporter."""
    # The parent's death signal may arrive after the end of file, and interrupt the shutdown.
    processes.outlive_parent()
    timer = threading.Timer(ORPHAN_STOP_SECONDS_MAX, os.killpg, (0, signal.SIGKILL))
    timer.daemon = True
    timer.start()


@dataclass(frozen=True, slots=True)
class Own:
    """Paths that belong to the instance and are writable."""

    directory: Path
    runtime: Path


def confine(chosen: Confinement, own: Own) -> None:
    """Restrict this process to ``chosen``. Raises ``OSError`` naming what failed."""
    cgroups.join(chosen.groups_of_limits)
    _limit(chosen)
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    if chosen.namespace:
        _enter_user_namespace()
    if chosen.user or chosen.namespace:
        # The kernel counts these per user and namespace, so this comes after both are set.
        _lower(resource.RLIMIT_NPROC, PROCESSES_MAX)
    if chosen.files:
        _hide_files(chosen, own)
    room = NetworkRoom(drop_rights=not chosen.user) if chosen.room else None
    if room is not None:
        room.enter()
    _give_up_rights(chosen)
    sandbox.use(Sandbox(wrapper=chosen.wrapper, room=room, readable=chosen.readable))


def _limit(chosen: Confinement) -> None:
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_NOFILE, OPEN_FILES_MAX)
    if chosen.file_bytes_max:
        _lower(resource.RLIMIT_FSIZE, chosen.file_bytes_max)


def _lower(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard == resource.RLIM_INFINITY or hard > most:
        resource.setrlimit(kind, (most, most))


def _enter_user_namespace() -> None:
    user, group = os.geteuid(), os.getegid()
    linux.unshare(linux.CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _hide_files(chosen: Confinement, own: Own) -> None:
    """Make everything read-only, private places empty, the instance's own paths writable."""
    linux.unshare(linux.CLONE_NEWNS)
    linux.mount("", "/", "", linux.MS_REC | linux.MS_PRIVATE)
    data = Path(chosen.data).resolve()
    writable = _kept((own.directory, own.runtime))
    kept = _kept((*map(Path, chosen.readable), *_interpreter(), *writable))
    hidden = [*map(Path, PRIVATE_PLACES), own.runtime.resolve().parent]
    if chosen.user:
        hidden += [place for path in kept for place in closed_above(path)]
    hidden = [place for place in outermost(hidden) if place.is_dir()]
    handles = {path: os.open(path, os.O_PATH) for path in kept}
    for place in hidden:
        empty(place)
    shown = [path for path in handles if covered(path, hidden) and not covered(path, [data])]
    for path in shown:
        show(handles[path], path)
    # Only now, because a directory that is shown again may contain it.
    if data.is_dir():
        empty(data)
    for path in handles:
        if covered(path, [data]):
            show(handles[path], path)
    if chosen.kvm:
        _own_kvm(chosen.user, hidden[0])
    linux.set_read_only("/", read_only=True, recursive=True)
    # A process writes below /proc, for example its uid map in a user namespace.
    for path in (*writable, Path("/proc")):
        linux.set_read_only(str(path), read_only=False)
    for handle in handles.values():
        os.close(handle)


def _kept(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Those of the paths that exist, each also with its resolved name."""
    both = (name for path in paths if path.exists() for name in (path.absolute(), path.resolve()))
    return tuple(dict.fromkeys(both))


def _interpreter() -> Iterator[Path]:
    """Paths that Python may still load modules from."""
    found = (sys.prefix, sys.base_prefix, *sys.path)
    for path in dict.fromkeys(Path(item).resolve() for item in found if item):
        if path != Path("/"):
            yield path


def _own_kvm(user: int, place: Path) -> None:
    """A KVM device node for this user, whatever the owner of the host's."""
    node = place / ".kvm"
    os.mknod(node, stat.S_IFCHR | 0o600, os.stat(KVM).st_rdev)
    os.chown(node, user, user)
    linux.mount(str(node), KVM, "", linux.MS_BIND)


def _give_up_rights(chosen: Confinement) -> None:
    if chosen.user:
        os.setgroups(chosen.groups)
        os.setresgid(chosen.user, chosen.user, chosen.user)
        os.setresuid(chosen.user, chosen.user, chosen.user)
        # Otherwise it could not inspect its own processes.
        linux.prctl(linux.PR_SET_DUMPABLE, 1)
    elif chosen.namespace:
        linux.drop_capabilities()


def closed_above(path: Path) -> Iterator[Path]:
    """Directories above ``path`` that another user could not enter."""
    for place in path.parents:
        if place.exists() and not place.stat().st_mode & EVERYONE_ENTERS:
            yield place


def empty(place: Path) -> None:
    """Mount an empty directory over ``place``."""
    linux.mount("tmpfs", str(place), "tmpfs", linux.MS_NOSUID, EMPTY_OPTIONS)


def show(handle: int, path: Path) -> None:
    """Mount the handle's file or directory at its path, in a hidden place."""
    if path.exists() and os.path.samestat(path.stat(), os.fstat(handle)):
        return
    is_directory = stat.S_ISDIR(os.fstat(handle).st_mode)
    (path if is_directory else path.parent).mkdir(mode=0o755, parents=True, exist_ok=True)
    if not is_directory:
        path.touch(mode=0o644)
    linux.mount(f"/proc/self/fd/{handle}", str(path), "", linux.MS_BIND | linux.MS_REC)
