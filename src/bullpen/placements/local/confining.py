"""Runs in a fresh fork: gives up access to the host, except what the instance needs.

The order matters. Limits and namespaces come first, while the process has the rights to set
them; then the view of files; then the thread in the machine's network; rights are dropped
last.
"""

from __future__ import annotations

import os
import resource
import stat
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bullpen.drivers import linux, sandbox
from bullpen.drivers.sandbox import NetworkRoom, Sandbox
from bullpen.placements.local import cgroups, views
from bullpen.placements.local.confinement import (
    OPEN_FILES_MAX,
    PRIVATE_PLACES,
    PROCESSES_MAX,
    Confinement,
    covered,
    outermost,
)

KVM = "/dev/kvm"


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
        hidden += [place for path in kept for place in views.closed_above(path)]
    hidden = [place for place in outermost(hidden) if place.is_dir()]
    handles = {path: os.open(path, os.O_PATH) for path in kept}
    for place in hidden:
        views.empty(place)
    shown = [path for path in handles if covered(path, hidden) and not covered(path, [data])]
    for path in shown:
        views.show(handles[path], path)
    # Only now, because a directory that is shown again may contain it.
    if data.is_dir():
        views.empty(data)
    for path in handles:
        if covered(path, [data]):
            views.show(handles[path], path)
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
