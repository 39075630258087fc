"""The parameters of ``program.bullpen.dev``, and the command line made from them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from bullpen.api.fields import Struct, about
from bullpen.drivers.target_files import File
from bullpen.kit.quantities import SIZE_PATTERN

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,29}")

ARGUMENTS_MAX = 256
ENVIRONMENT_MAX = 64
FILES_MAX = 32
PORTS_MAX = 32
PATHS_MAX = 32
READY_SECONDS_MAX = 600

CONSOLE = "console"
"""The name of the port on which a program offers its console over TCP."""

PTY_PATTERN = r"(/dev/pts/[0-9]+)"

_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


class ConsoleKind(StrEnum):
    STDIO = "stdio"
    PTY = "pty"
    TCP = "tcp"
    UNIX = "unix"


class ProgramNetwork(StrEnum):
    RESTRICTED = "restricted"
    HOST = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramResources(Struct):
    """What one program may use of its host."""

    cpu: int = field(
        default=1, metadata=about("CPUs it may keep busy.", minimum=1, maximum=255, defaulted=True)
    )
    memory: int | str = field(
        default="256Mi",
        metadata=about("The most memory it may use.", pattern=SIZE_PATTERN, defaulted=True),
    )
    firmware: int | str = field(
        default="64Mi",
        metadata=about(
            "Maximum size of firmware that a lessee flashes.", pattern=SIZE_PATTERN, defaulted=True
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramPort(Struct):
    """A TCP port on which the program listens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramParameters(Struct):
    """Parameters of targets that are a program with a console."""

    program: str = field(
        metadata=about(
            "The program: an absolute path on the host, or a name that is looked up in /usr/bin.",
            required=True,
            pattern=r"^(/[^{}]+|[A-Za-z0-9._+-]+)$",
        )
    )
    arguments: tuple[str, ...] = field(
        default=(),
        metadata=about(
            "Its arguments, with placeholders: {firmware}, {file:NAME}, {dir}, {socket},"
            " {port:NAME}; {{ and }} are literal braces.",
            max_items=ARGUMENTS_MAX,
        ),
    )
    environment: Mapping[str, str] = field(
        default_factory=dict,
        metadata=about(
            "Environment variables, with the same placeholders. They are visible to users of the"
            " host: not for secrets.",
            max_properties=ENVIRONMENT_MAX,
        ),
    )
    firmware: File | None = field(
        default=None, metadata=about("What the target runs until a lessee flashes something else.")
    )
    files: Mapping[str, File] = field(
        default_factory=dict,
        metadata=about("Other files the program reads, by name.", max_properties=FILES_MAX),
    )
    readable: tuple[str, ...] = field(
        default=(),
        metadata=about(
            "Paths outside /usr that the program reads, such as its installation.",
            max_items=PATHS_MAX,
        ),
    )
    console: ConsoleKind = field(
        default=ConsoleKind.STDIO,
        metadata=about(
            "Where the console is: stdio, the program's input and output; pty, a pseudo-terminal"
            " whose path it prints; tcp, port {port:console}; unix, the socket {socket}.",
            defaulted=True,
        ),
    )
    pty_pattern: str = field(
        default=PTY_PATTERN,
        metadata=about(
            "Regular expression that finds the path of the pseudo-terminal in what the program"
            " prints, as its first group.",
            defaulted=True,
        ),
    )
    ready: str = field(
        default="",
        metadata=about(
            "Regular expression. The target is on once its console has printed a match; without"
            " it, once its console is connected."
        ),
    )
    ready_seconds: int = field(
        default=30,
        metadata=about(
            "How long switching on may take.", minimum=1, maximum=READY_SECONDS_MAX, defaulted=True
        ),
    )
    ports: Mapping[str, ProgramPort] = field(
        default_factory=dict,
        metadata=about(
            "TCP ports of the program by name, for {port:NAME}. Each instance gets free ports; a"
            " driver of that name connects to them.",
            max_properties=PORTS_MAX,
        ),
    )
    network: ProgramNetwork = field(
        default=ProgramNetwork.RESTRICTED,
        metadata=about(
            "Network access of the program. restricted: none; host: that of the host.",
            defaulted=True,
        ),
    )
    fetch_from: tuple[str, ...] = field(
        default=(),
        metadata=about(
            "Hosts from which firmware that a lessee names by URL may be fetched, as for QEMU.",
            max_items=PATHS_MAX,
        ),
    )
    resources: ProgramResources = field(
        default=ProgramResources(), metadata=about("CPUs and memory.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Placeholders:
    """The values for the placeholders of one run."""

    directory: str
    socket: str = ""
    firmware: str = ""
    """Empty if the target has no firmware yet."""

    files: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)


class FirmwareMissing(RuntimeError):
    """The program needs firmware, and there is none."""


def command(wanted: ProgramParameters, values: Placeholders) -> tuple[str, ...]:
    """The command line, run in the instance's directory with its environment."""
    fill = _filler(values)
    return (
        *("env", "-C", values.directory),
        *(f"{name}={_filled(text, fill)}" for name, text in sorted(wanted.environment.items())),
        wanted.program,
        *(_filled(text, fill) for text in wanted.arguments),
    )


def port_names(wanted: ProgramParameters) -> tuple[str, ...]:
    """The ports an instance needs, the console's included."""
    console = (CONSOLE,) if wanted.console is ConsoleKind.TCP else ()
    return (*console, *sorted(wanted.ports))


def uses_firmware(wanted: ProgramParameters) -> bool:
    return any(name == "firmware" for name in _used(wanted))


def problems(wanted: ProgramParameters) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """What a schema cannot express: the path in the parameters, and what is wrong there."""
    known = _known(wanted)
    for path, text in _texts(wanted):
        for name in _names(text):
            if name not in known:
                shown = "{" + name + "}"
                yield path, f"{shown} is not known here; known: {', '.join(sorted(known))}"
    for where in ("ports", "files"):
        for name in sorted(getattr(wanted, where)):
            if not _NAME.fullmatch(name):
                yield (where, name), "a name has at most 30 lower-case letters, digits, - and _"
    if CONSOLE in wanted.ports:
        yield ("ports", CONSOLE), "is the port of the console; use console: tcp"
    for name in ("pty_pattern", "ready"):
        if problem := _pattern_problem(getattr(wanted, name), groups=int(name == "pty_pattern")):
            yield ({"pty_pattern": "ptyPattern"}.get(name, name),), problem
    needed = {ConsoleKind.TCP: f"port:{CONSOLE}", ConsoleKind.UNIX: "socket"}.get(wanted.console)
    if needed and needed not in set(_used(wanted)):
        shown = "{" + needed + "}"
        yield ("arguments",), f"must contain {shown}: console is {wanted.console}"


def _pattern_problem(pattern: str, *, groups: int) -> str:
    try:
        found = re.compile(pattern.encode())
    except re.error as error:
        return f"is not a regular expression: {error}"
    return "" if found.groups >= groups else "must have a group, in parentheses, for the path"


def _known(wanted: ProgramParameters) -> frozenset[str]:
    return frozenset(
        {
            "dir",
            "firmware",
            *(("socket",) if wanted.console is ConsoleKind.UNIX else ()),
            *(f"file:{name}" for name in wanted.files),
            *(f"port:{name}" for name in port_names(wanted)),
        }
    )


def _texts(wanted: ProgramParameters) -> Iterator[tuple[tuple[str | int, ...], str]]:
    for index, text in enumerate(wanted.arguments):
        yield ("arguments", index), text
    for name, text in sorted(wanted.environment.items()):
        yield ("environment", name), text


def _used(wanted: ProgramParameters) -> Iterator[str]:
    return (name for _, text in _texts(wanted) for name in _names(text))


def _names(text: str) -> Iterator[str]:
    """The placeholders in a text; a lone brace counts as one, so that it is reported."""
    for found in _PLACEHOLDER.finditer(text):
        if found[0] not in ("{{", "}}"):
            yield found[1] or found[0].strip("{}")


def _filler(values: Placeholders) -> Callable[[str], str]:
    def fill(name: str) -> str:
        kind, _, which = name.partition(":")
        if kind == "firmware":
            if not values.firmware:
                raise FirmwareMissing("the target has no firmware; flash one, then switch it on")
            return values.firmware
        if kind == "file":
            return values.files[which]
        if kind == "port":
            return str(values.ports[which])
        return {"dir": values.directory, "socket": values.socket}[name]

    return fill


def _filled(text: str, fill: Callable[[str], str]) -> str:
    def value(found: re.Match[str]) -> str:
        return {"{{": "{", "}}": "}"}.get(found[0]) or fill(found[1])

    return _PLACEHOLDER.sub(value, text)
