"""The sandbox on this host: which layers it allows, and the confinement of each instance.

Each layer is tried once; none is assumed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import bullpen
from bullpen.drivers.qemu_files import image_chain
from bullpen.errors import NoCapacity, Refused
from bullpen.placements.base import Needs, Site
from bullpen.placements.local import cgroups, layout
from bullpen.placements.local.cgroups import Cgroups, CgroupsMissing, Limits
from bullpen.placements.local.confinement import (
    PROCESSES_MAX,
    Confinement,
    Layer,
    LayerName,
    Sandboxing,
    SandboxMode,
    free_user,
    missing,
    sandboxing,
    user_range,
)
from bullpen.placements.local.layout import State

log = logging.getLogger("bullpen.placements")

KVM = Path("/dev/kvm")

TRIAL_SECONDS_MAX = 10.0

NAMESPACES = (
    "allow user namespaces for ordinary users: sysctl -w user.max_user_namespaces=10000"
    " kernel.apparmor_restrict_unprivileged_userns=0"
)

BUBBLEWRAP = "apt-get install bubblewrap"

ROOT = "run the service as root, or allow it to create namespaces"

GROUPS = (
    "run the service as root in a group with the controllers memory, pids and cpu; with version 2"
    " they must be in the cgroup.subtree_control of that group, or systemd must delegate it"
    " (Delegate=yes, as in the units of `bullpen service install`)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSettings:
    """The operator's settings for sandboxes."""

    mode: SandboxMode = SandboxMode.PREFERRED
    first_user: int = 0
    paths: tuple[str, ...] = ()
    """Paths of the host that every instance may read."""


class HostSandbox:
    """Decides the confinement of an instance. Use it after ``prepare``."""

    def __init__(self, data: Path, settings: SandboxSettings) -> None:
        self._data = data
        self._settings = settings
        self._host: Host | None = None

    @property
    def sandboxing(self) -> Sandboxing:
        return sandboxing(self._settings.mode, self._layers)

    @property
    def _layers(self) -> tuple[Layer, ...]:
        return self._host.layers if self._host else ()

    async def prepare(self, tokens: Iterable[str]) -> None:
        """Find out which layers the host allows, and log once which it does not."""
        if self._settings.mode is SandboxMode.OFF:
            log.warning("instances run without a sandbox", extra={"key": "sandbox.mode"})
            return
        first = self._settings.first_user
        self._host = await asyncio.to_thread(probe, self._data, first_user=first)
        if self._host.cgroups is not None:
            self._host.cgroups.remove_others(map(layout.runtime_name, tokens))
        for layer in self._host.layers:
            if layer.problem:
                facts = {"key": layer.name, "cause": layer.problem, "remedy": layer.remedy}
                log.warning("sandbox layer not available", extra=facts)

    def close(self) -> None:
        if self._host is not None and self._host.cgroups is not None:
            self._host.cgroups.close()

    def refuse(self) -> None:
        """Raise ``Refused`` if no instance may be started here."""
        lacking = missing(self._layers)
        if lacking and self._settings.mode is SandboxMode.REQUIRED:
            raise Refused(
                f"this host does not allow the sandbox that sandbox.mode requires ({lacking});"
                " bullpen doctor shows the remedy"
            )

    def user(self, taken: Collection[int]) -> int:
        """A uid for another instance; 0 for the service's own. Raises ``NoCapacity``."""
        host = self._host
        if host is None or host.namespace or not host.has(LayerName.USER):
            return 0
        found = free_user(host.users, taken)
        if not found:
            raise NoCapacity(f"all {len(host.users)} users for instances are in use")
        return found

    def confinement(self, state: State, needs: Needs, site: Site) -> Confinement | None:
        """The sandbox of an instance. Raises ``Refused`` for files the instance could not read."""
        host = self._host
        if host is None:
            return None
        files = [file for path in site.artifacts.values() for file in image_chain(path)]
        if state.user:
            _check_readable(files)
        limits = Limits(
            memory_bytes=needs.memory_bytes_max, processes=PROCESSES_MAX, cpus=needs.cpus_max
        )
        name = layout.runtime_name(state.token)
        return Confinement(
            user=state.user,
            groups=_kvm_group() if state.user else (),
            namespace=host.namespace and host.has(LayerName.USER),
            files=host.has(LayerName.FILES),
            data=str(self._data.resolve()),
            readable=(*map(str, dict.fromkeys(files)), *self._settings.paths),
            # An instance that runs neither a machine nor a program has nothing to isolate.
            room=host.has(LayerName.NETWORK) and bool(needs.runtime or needs.programs),
            wrapper=host.wrapper if host.has(LayerName.PROGRAMS) else "",
            groups_of_limits=host.cgroups.make(name, limits) if host.cgroups else (),
            file_bytes_max=needs.file_bytes_max,
            kvm=bool(state.user) and host.has(LayerName.FILES) and KVM.exists(),
        )


def _check_readable(files: Iterable[Path]) -> None:
    for path in files:
        if path.exists() and not path.stat().st_mode & stat.S_IROTH:
            raise Refused(
                f"{path} cannot be read by instances, which run as other users; chmod o+r {path}"
            )


def _kvm_group() -> tuple[int, ...]:
    """The group that may use the device, if access is not possible otherwise."""
    if not KVM.exists():
        return ()
    found = os.stat(KVM)
    return (found.st_gid,) if found.st_gid and found.st_mode & stat.S_IWGRP else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The layers the service can use for its instances."""

    layers: tuple[Layer, ...]
    users: range = range(0)
    namespace: bool = False
    """The layers use a user namespace, because the service is not root."""

    wrapper: str = ""
    cgroups: Cgroups | None = None

    def has(self, name: LayerName) -> bool:
        return any(layer.name is name and layer.available for layer in self.layers)


def probe(data: Path, *, first_user: int = 0) -> Host:
    """Try each layer once. Takes a few hundredths of a second."""
    users = user_range(data, first=first_user)
    root = os.geteuid() == 0
    wrapper = shutil.which("bwrap") or ""
    groups, limits = _limits(data)
    return Host(
        layers=(
            _user(users[0]) if root else _tried(LayerName.USER, ("unshare", "-U"), NAMESPACES),
            _tried(LayerName.FILES, ("unshare", "-m" if root else "-Um"), ROOT),
            _tried(LayerName.NETWORK, ("unshare", "-n" if root else "-Un"), ROOT),
            _programs(wrapper, users[0] if root else 0),
            limits,
        ),
        users=users if root else range(0),
        namespace=not root,
        wrapper=wrapper,
        cgroups=groups,
    )


def _user(user: int) -> Layer:
    for path in _unreadable():
        return Layer(
            name=LayerName.USER,
            problem=f"{path} cannot be read by other users, but instances run as other users",
            remedy=f"chmod -R o+rX {path}",
        )
    return _tried(LayerName.USER, _as(user), ROOT)


def _unreadable() -> Iterator[Path]:
    """Parts of Python and of this program that an instance could not read."""
    for path in (Path(sys.executable).resolve(), Path(bullpen.__file__)):
        if not path.stat().st_mode & stat.S_IROTH:
            yield path.parent


def _programs(wrapper: str, user: int) -> Layer:
    name = LayerName.PROGRAMS
    if not wrapper:
        return Layer(name=name, problem="bubblewrap is not installed", remedy=BUBBLEWRAP)
    trial = (wrapper, "--unshare-user", "--unshare-pid", "--ro-bind", "/", "/")
    return _tried(name, (*(_as(user) if user else ()), *trial), NAMESPACES)


def _as(user: int) -> tuple[str, ...]:
    return (
        "setpriv", "--reuid", str(user), "--regid", str(user), "--clear-groups", "--no-new-privs",
    )  # fmt: skip


def _tried(name: LayerName, prefix: tuple[str, ...], remedy: str) -> Layer:
    problem = _failure((*prefix, "true"))
    return Layer(name=name, problem=problem, remedy=remedy if problem else "")


def _failure(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, check=False, timeout=TRIAL_SECONDS_MAX, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    words = done.stderr.decode(errors="replace").strip().splitlines()
    return (words[0] if words else f"exit code {done.returncode}") if done.returncode else ""


def _limits(data: Path) -> tuple[Cgroups | None, Layer]:
    try:
        cgroups.settle()
        found = Cgroups(cgroups.find(), data)
        found.prepare()
    except (CgroupsMissing, OSError) as error:
        return None, Layer(name=LayerName.LIMITS, problem=str(error), remedy=GROUPS)
    return found, Layer(name=LayerName.LIMITS)
