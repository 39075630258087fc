"""The parameters of ``container.bullpen.dev``, and the arguments of podman made from them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from bullpen.api.fields import Struct, about
from bullpen.drivers.program_parameters import (
    ARGUMENTS_MAX,
    ENVIRONMENT_MAX,
    FILES_MAX,
    PATHS_MAX,
    PORTS_MAX,
    READY_SECONDS_MAX,
    ProgramNetwork,
)
from bullpen.drivers.target_files import File
from bullpen.kit.quantities import SIZE_PATTERN

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,29}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

CONTAINER = "target"
"""Name of the container, and its host name. An instance has one."""

IMAGE = f"localhost/{CONTAINER}"


class ContainerConsole(StrEnum):
    STDIO = "stdio"
    SHELL = "shell"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPort(Struct):
    """A TCP port on which a process in the container listens."""

    port: int = field(metadata=about("Its number.", required=True, minimum=1, maximum=65535))


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerResources(Struct):
    """What one container may use of its host."""

    cpu: int = field(
        default=1, metadata=about("CPUs it may keep busy.", minimum=1, maximum=255, defaulted=True)
    )
    memory: int | str = field(
        default="256Mi",
        metadata=about("The most memory it may use.", pattern=SIZE_PATTERN, defaulted=True),
    )
    image: int | str = field(
        default="2Gi",
        metadata=about(
            "Maximum size of an image that a lessee flashes, and of a file in the container.",
            pattern=SIZE_PATTERN,
            defaulted=True,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerParameters(Struct):
    """Parameters of targets that are containers."""

    image: File | None = field(
        default=None,
        metadata=about(
            "An archive with one image, as `podman save` writes it. The target runs it until a"
            " lessee flashes another; without it, the target must be flashed first."
        ),
    )
    command: tuple[str, ...] = field(
        default=(),
        metadata=about(
            "The program in the container and its arguments; the image's own if empty.",
            max_items=ARGUMENTS_MAX,
        ),
    )
    environment: Mapping[str, str] = field(
        default_factory=dict,
        metadata=about(
            "Environment variables. They are visible to users of the host: not for secrets.",
            max_properties=ENVIRONMENT_MAX,
        ),
    )
    files: Mapping[str, File] = field(
        default_factory=dict,
        metadata=about(
            "Files that the container reads, by their absolute path in it.",
            max_properties=FILES_MAX,
        ),
    )
    console: ContainerConsole = field(
        default=ContainerConsole.STDIO,
        metadata=about(
            "What the console is: stdio, the input and output of the container's program; shell,"
            " a shell beside it, started again when it ends.",
            defaulted=True,
        ),
    )
    shell: str = field(
        default="/bin/sh",
        metadata=about("The shell for console: shell.", pattern="^/", defaulted=True),
    )
    ready: str = field(
        default="",
        metadata=about(
            "Regular expression. The target is on once its console has printed a match; without"
            " it, once the container runs."
        ),
    )
    ready_seconds: int = field(
        default=60,
        metadata=about(
            "How long switching on may take; the first time it includes unpacking the image.",
            minimum=1,
            maximum=READY_SECONDS_MAX,
            defaulted=True,
        ),
    )
    ports: Mapping[str, ContainerPort] = field(
        default_factory=dict,
        metadata=about(
            "TCP ports of the container by name; a driver of that name connects to each.",
            max_properties=PORTS_MAX,
        ),
    )
    network: ProgramNetwork = field(
        default=ProgramNetwork.RESTRICTED,
        metadata=about(
            "Network access of the container. restricted: none; host: that of the host.",
            defaulted=True,
        ),
    )
    fetch_from: tuple[str, ...] = field(
        default=(),
        metadata=about(
            "Hosts from which an image that a lessee names by URL may be fetched, as for QEMU.",
            max_items=PATHS_MAX,
        ),
    )
    resources: ContainerResources = field(
        default=ContainerResources(), metadata=about("CPUs, memory and sizes.")
    )


def problems(wanted: ContainerParameters) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """What a schema cannot express: the path in the parameters, and what is wrong there."""
    for name in sorted(wanted.environment):
        if not _VARIABLE.fullmatch(name):
            yield ("environment", name), "is not the name of an environment variable"
    for place in sorted(wanted.files):
        if not place.startswith("/") or ":" in place or ".." in place.split("/"):
            yield ("files", place), "must be an absolute path without colons and '..'"
    for name in sorted(wanted.ports):
        if not _NAME.fullmatch(name):
            yield ("ports", name), "a name has at most 30 lower-case letters, digits, - and _"
    if wanted.ports and wanted.network is ProgramNetwork.HOST:
        yield ("ports",), "need network: restricted; with network: host, connect to the host"
    try:
        re.compile(wanted.ready.encode())
    except re.error as error:
        yield ("ready",), f"is not a regular expression: {error}"


def create_arguments(
    wanted: ContainerParameters, *, network: str, pidfile: str, files: Mapping[str, str]
) -> tuple[str, ...]:
    """The arguments of ``podman create``. ``files``: paths on the host by paths inside."""
    options: list[str] = ["--name", CONTAINER, "--hostname", CONTAINER, "--pull", "never"]
    options += ["--network", network, "--log-driver", "none", "--pidfile", pidfile]
    if wanted.console is ContainerConsole.STDIO:
        options += ["--interactive", "--tty"]
    for name, value in sorted(wanted.environment.items()):
        options += ["--env", f"{name}={value}"]
    for inside, path in sorted(files.items()):
        options += ["--volume", f"{path}:{inside}:ro"]
    if wanted.command:
        options += ["--entrypoint", json.dumps(wanted.command)]
    return (*options, IMAGE)
