"""A container as a Jumpstarter driver: power, console, flasher and ports.

podman runs as the instance's own user, without any rights on the host, inside the same sandbox
as other programs. It keeps images and containers in the instance's directory, and all its
processes are in the sandbox's process namespace: they end with it, however it ends, and other
users of podman on the host see nothing of it.

The container is created when the target is first switched on. Switching off kills it, and its
files stay as on the disk of a machine; a flashed image starts afresh.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

from bullpen.api import codec
from bullpen.drivers.container_parameters import (
    CONTAINER,
    IMAGE,
    ContainerConsole,
    ContainerParameters,
    create_arguments,
)
from bullpen.drivers.program import Program
from bullpen.drivers.program_parameters import FirmwareMissing, Placeholders, ProgramParameters
from bullpen.drivers.program_parameters import ProgramPort as Port
from bullpen.drivers.sandbox import Access
from bullpen.kit import quantities

CREATE = f"""\
podman() {{ command podman --log-level fatal "$@"; }}
set -eu
archive=$1 shell=$2; shift 2
# Some hosts do not allow overlay file systems here; copies of the layers always work.
if [ ! -e store ] && ! podman info >/dev/null 2>&1; then
    rm -rf store "$XDG_RUNTIME_DIR"/*
    sed -i 's/"overlay"/"vfs"/' "$CONTAINERS_STORAGE_CONF"
fi
if ! podman container exists {CONTAINER}; then
    loaded=$(podman load --quiet --input "$archive")
    podman tag "${{loaded##*: }}" {IMAGE}
    podman create "$@" >/dev/null
fi
"""
"""Arguments: the archive, the shell for the console, the arguments of ``podman create``."""

ATTACH = f"""\
podman start --attach --interactive --sig-proxy=false {CONTAINER}
"""

SHELL = f"""\
podman start {CONTAINER} >/dev/null
podman attach --no-stdin --sig-proxy=false {CONTAINER} >&2 &
while podman exec --interactive --tty {CONTAINER} "$shell" || [ $? -lt 125 ]; do
    podman container inspect --format '{{{{.State.Running}}}}' {CONTAINER} | grep -q true || break
done
"""
"""125 and above mean that the shell itself could not be started, or was killed."""

ENGINE = """\
[containers]
pids_limit = 0
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
runtime = "runc"
"""
"""Without limits of podman's own: the instance's control groups limit the container."""

STORAGE = """\
[storage]
driver = "overlay"
graphroot = "{store}"
runroot = "{run}/containers"
rootless_storage_path = "{store}"
[storage.options]
ignore_chown_errors = "true"
"""
"""The instance has one user, so all files of an image belong to it."""

POLICY = '{"default": [{"type": "insecureAcceptAnything"}]}'
"""Which signatures are demanded: none, since a file's digest was verified when it was fetched."""

NAMES = ("/etc/hosts", "/etc/resolv.conf")
"""What a container in the host's network looks names up with."""


@dataclass(kw_only=True)
class Container(Program):
    """The target. Clients see its power, console, flasher and ports."""

    partition: ClassVar[str] = "image"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._podman: TemporaryDirectory[str] | None = None
        """Where podman keeps the image and the container."""

        self._created_from = ""

    def read_parameters(self) -> ProgramParameters:
        """Those of podman as a program with a console."""
        wanted = self.container = codec.decode(ContainerParameters, self.target)
        return ProgramParameters(
            program="podman",
            firmware=wanted.image,
            files=wanted.files,
            ready=wanted.ready,
            ready_seconds=wanted.ready_seconds,
            ports=dict.fromkeys(wanted.ports, Port()),
            network=wanted.network,
            fetch_from=wanted.fetch_from,
        )

    def is_flashable(self) -> bool:
        return True

    async def granted_bytes(self, partition: str) -> int:
        return quantities.parse(self.container.resources.image).whole()

    def port(self, name: str) -> int:
        return self.container.ports[name].port

    def has_started(self) -> bool:
        return self._pidfile.exists()

    def line(self, values: Placeholders) -> tuple[str, ...]:
        self._refuse_without_sandbox()
        if not values.firmware:
            raise FirmwareMissing("the target has no image; flash one, then switch it on")
        place = self._prepared(values.firmware)
        create = create_arguments(
            self.container,
            network="host" if self.is_connected() or self.sandbox.room else "none",
            pidfile=str(self._pidfile),
            files=values.files,
        )
        console = ATTACH if self.container.console is ContainerConsole.STDIO else SHELL
        return (
            *("env", "-C", str(place), f"HOME={place}", f"TMPDIR={place / 'tmp'}"),
            f"XDG_RUNTIME_DIR={self._run}",
            f"CONTAINERS_CONF={place / 'containers.conf'}",
            f"CONTAINERS_STORAGE_CONF={place / 'storage.conf'}",
            *("sh", "-c", CREATE + console, "sh", values.firmware, self.container.shell),
            *create,
        )

    def access(self, values: Placeholders) -> Access:
        return Access(
            readable=(
                values.firmware,
                *values.files.values(),
                *(NAMES if self.is_connected() else ()),
            ),
            writable=(self._files.name, self._sockets.name),
            containers=True,
        )

    @property
    def _run(self) -> Path:
        return Path(self._sockets.name) / "run"

    @property
    def _pidfile(self) -> Path:
        return self._run / "container.pid"

    def _refuse_without_sandbox(self) -> None:
        if self.machine_site.launcher:
            raise RuntimeError("containers run on hosts, not in Pods; use a pool of another kind")
        layers = {
            "programs": bool(self.sandbox.wrapper),
            # The kernel does not let containers of the host's root have a /proc in a sandbox.
            "user": os.geteuid() != 0,
            "network": bool(self.sandbox.room) or not self.container.ports,
        }
        lacking = ", ".join(name for name, available in layers.items() if not available)
        if lacking:
            raise RuntimeError(
                f"containers need layers of the sandbox that are not available here: {lacking};"
                " bullpen doctor shows the remedy"
            )

    def _prepared(self, image: str) -> Path:
        """The directory of podman, with the container of this image if there is one already."""
        if self._created_from != image:
            if self._podman is not None:
                self._podman.cleanup()
            self._podman = TemporaryDirectory(dir=self._files.name, prefix="podman-")
            self._created_from = image
            self._configure(Path(self._podman.name))
        # Without its records of running containers, podman knows that they were killed.
        shutil.rmtree(self._run, ignore_errors=True)
        self._run.mkdir()
        assert self._podman is not None
        return Path(self._podman.name)

    def _configure(self, place: Path) -> None:
        (place / "tmp").mkdir()
        own = place / ".config" / "containers"
        own.mkdir(parents=True)
        (own / "policy.json").write_text(POLICY)
        (place / "containers.conf").write_text(ENGINE)
        settings = STORAGE.format(store=place / "store", run=self._run)
        (place / "storage.conf").write_text(settings)
