"""Which layers of the sandbox this host allows: each is tried, none is assumed."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import bullpen
from bullpen.placements.local import cgroups
from bullpen.placements.local.cgroups import Cgroups, CgroupsMissing
from bullpen.placements.local.confinement import Layer, LayerName, user_range

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
