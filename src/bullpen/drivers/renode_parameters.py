"""The parameters of ``renode.jumpstarter.dev``, and the monitor commands made from them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from bullpen.api.fields import Rule, Struct, about
from bullpen.drivers.program_parameters import PATHS_MAX, READY_SECONDS_MAX
from bullpen.drivers.target_files import File
from bullpen.kit.quantities import SIZE_PATTERN

COMMANDS_MAX = 64
COMMAND_CHARACTERS_MAX = 1024
UARTS_MAX = 16

CONSOLE = "console"
"""The name of the main UART; other UARTs have the names that the class gives them."""

GDB = "gdb"
"""The name of the driver that connects to Renode's GDB server."""

START = "start"
RESET = "machine Reset"

PATH_PATTERN = r"^[A-Za-z0-9._/+-]+$"
"""Paths that the monitor reads as one word."""

_PATH = re.compile(PATH_PATTERN)
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,29}")
_SNAPSHOT = re.compile(r"(Save|Load) @([a-z0-9][a-z0-9-]{0,29})")

LESSEE_COMMANDS = ("pause", START, RESET, "currentTime")
"""What every lessee may tell the monitor, besides saving and loading snapshots."""

ELF, INTEL_HEX = b"\x7fELF", b":"


@dataclass(frozen=True, slots=True, kw_only=True)
class RenodeResources(Struct):
    """What one simulation may use of its host."""

    cpu: int = field(
        default=1, metadata=about("CPUs it may keep busy.", minimum=1, maximum=255, defaulted=True)
    )
    memory: int | str = field(
        default="1Gi",
        metadata=about("The most memory it may use.", pattern=SIZE_PATTERN, defaulted=True),
    )
    firmware: int | str = field(
        default="64Mi",
        metadata=about(
            "Maximum size of firmware that a lessee flashes.", pattern=SIZE_PATTERN, defaulted=True
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RenodeParameters(Struct):
    """Parameters of targets that Renode simulates."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="[has(self.platform), has(self.script), has(self.snapshot)]"
            ".filter(given, given).size() == 1",
            message="give one of platform, script and snapshot",
        ),
    )

    program: str = field(
        default="renode",
        metadata=about(
            "Renode: an absolute path on the host, or a name that is looked up in /usr/bin.",
            pattern=r"^(/[^{}]+|[A-Za-z0-9._+-]+)$",
            defaulted=True,
        ),
    )
    readable: tuple[str, ...] = field(
        default=("/opt/renode",),
        metadata=about(
            "Paths outside /usr that Renode reads, such as its installation.",
            max_items=PATHS_MAX,
            defaulted=True,
        ),
    )
    platform: str = field(
        default="",
        metadata=about(
            "Platform description (.repl): an absolute path on the host, or a path in Renode's"
            " installation.",
            pattern=PATH_PATTERN,
        ),
    )
    script: File | None = field(
        default=None,
        metadata=about(
            "Monitor script (.resc) that creates the machine. $bin is the firmware. It must not"
            " start the simulation: its UARTs are connected first."
        ),
    )
    snapshot: File | None = field(
        default=None,
        metadata=about(
            "State that Renode has saved and loads again, without terminals on its UARTs."
        ),
    )
    machine_name: str = field(
        default="machine-0",
        metadata=about(
            "Name of the machine that is created for a platform.",
            pattern=r"^[A-Za-z0-9_-]{1,63}$",
            defaulted=True,
        ),
    )
    firmware: File | None = field(
        default=None,
        metadata=about(
            "What the target runs until a lessee flashes something else: an ELF file, Intel HEX,"
            " or a binary with loadAddress."
        ),
    )
    load_address: str = field(
        default="",
        metadata=about(
            "Where firmware that is neither ELF nor Intel HEX is loaded.",
            pattern="^0x[0-9A-Fa-f]{1,16}$",
        ),
    )
    uart: str = field(
        default="sysbus.uart0",
        metadata=about("The UART that is the console.", pattern=r"^[\w.-]+$", defaulted=True),
    )
    uarts: Mapping[str, str] = field(
        default_factory=dict,
        metadata=about(
            "Other UARTs by name, such as sysbus.uart1; a console of that name is connected to"
            " each.",
            max_properties=UARTS_MAX,
        ),
    )
    extra_commands: tuple[str, ...] = field(
        default=(),
        metadata=about(
            "Monitor commands that are executed before firmware is loaded.",
            max_items=COMMANDS_MAX,
        ),
    )
    allow_raw_monitor: bool = field(
        default=False,
        metadata=about(
            "Whether a lessee may execute every command of the monitor. It gives them the rights"
            " of Renode in its sandbox.",
            defaulted=True,
        ),
    )
    gdb: bool = field(
        default=False,
        metadata=about(
            "Whether the machine has a GDB server, with a driver named gdb that connects to it.",
            defaulted=True,
        ),
    )
    ready: str = field(
        default="",
        metadata=about(
            "Regular expression. The target is on once its console has printed a match; without"
            " it, once the simulation runs."
        ),
    )
    ready_seconds: int = field(
        default=60,
        metadata=about(
            "How long switching on may take.", minimum=1, maximum=READY_SECONDS_MAX, defaulted=True
        ),
    )
    fetch_from: tuple[str, ...] = field(
        default=(),
        metadata=about(
            "Hosts from which firmware that a lessee names by URL may be fetched, as for QEMU.",
            max_items=PATHS_MAX,
        ),
    )
    resources: RenodeResources = field(
        default=RenodeResources(), metadata=about("CPUs, memory and sizes.")
    )


class CommandRefused(ValueError):
    """A lessee may not execute this command."""


class FirmwareUnknown(RuntimeError):
    """It cannot be told how the firmware is loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """A UART of the machine as a pseudo-terminal."""

    name: str
    """The name of the console."""

    uart: str
    path: str
    """Of the link that Renode makes to the pseudo-terminal."""

    run: int
    """Renode cannot replace a terminal, so each time there is one of another name."""

    @property
    def element(self) -> str:
        """Its name in the monitor."""
        return f"bullpen_{self.name.replace('-', '_')}_{self.run}"

    def connected(self) -> tuple[str, ...]:
        return (
            f'emulation CreateUartPtyTerminal "{self.element}" "{self.path}" true',
            f"connector Connect {self.uart} {self.element}",
        )

    def disconnected(self) -> str:
        return f"connector Disconnect {self.uart} {self.element}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A snapshot that a lessee asks for."""

    saves: bool
    name: str


def problems(wanted: RenodeParameters) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """What a schema cannot express: the path in the parameters, and what is wrong there."""
    for name in ("script", "snapshot", "firmware"):
        file: File | None = getattr(wanted, name)
        if file is not None and file.path and not _PATH.fullmatch(file.path):
            yield (name, "path"), "must consist of letters, digits and ./_+-"
    if wanted.snapshot is not None and wanted.firmware is not None:
        yield ("firmware",), "is part of the snapshot already"
    for name, uart in sorted(wanted.uarts.items()):
        if not _NAME.fullmatch(name):
            yield ("uarts", name), "a name has at most 30 lower-case letters, digits, - and _"
        if not re.fullmatch(r"[\w.-]+", uart):
            yield ("uarts", name), f"{uart!r} is not the name of a UART, such as sysbus.uart1"
    if GDB in wanted.uarts and wanted.gdb:
        yield ("uarts", GDB), "is the driver of the GDB server"
    for index, command in enumerate(wanted.extra_commands):
        if problem := _command_problem(command):
            yield ("extraCommands", index), problem
    try:
        re.compile(wanted.ready.encode())
    except re.error as error:
        yield ("ready",), f"is not a regular expression: {error}"


def _command_problem(command: str) -> str:
    if not command.strip() or len(command) > COMMAND_CHARACTERS_MAX:
        return f"must have 1 to {COMMAND_CHARACTERS_MAX} characters"
    if not command.isprintable():
        return "must be one line of printable characters"
    if '"""' in command:
        return "must not begin text of several lines"
    return ""


def uarts(wanted: RenodeParameters) -> dict[str, str]:
    """Every UART by the name of its console."""
    return {CONSOLE: wanted.uart, **dict(sorted(wanted.uarts.items()))}


def command_line(wanted: RenodeParameters, directory: str) -> tuple[str, ...]:
    """Renode with its monitor on its standard streams. It opens no port and no window."""
    return (
        *("env", "-C", directory, f"HOME={directory}", f"TMPDIR={directory}"),
        f"DOTNET_BUNDLE_EXTRACT_BASE_DIR={directory}",
        *(wanted.program, "--console", "--disable-gui", "--plain", "--hide-analyzers"),
        *("--config", f"{directory}/config"),
    )


def machine_commands(
    wanted: RenodeParameters, *, firmware: str, script: str, snapshot: str
) -> tuple[str, ...]:
    """Create the machine. ``firmware``, ``script`` and ``snapshot``: paths, or empty."""
    if snapshot:
        return loading(snapshot)
    if script:
        binary = (f"$bin=@{firmware}",) if firmware else ()
        return (*binary, f"include @{script}")
    return (
        f'mach create "{wanted.machine_name}"',
        f"machine LoadPlatformDescription @{wanted.platform}",
    )


def loading(path: str) -> tuple[str, ...]:
    """Replace the machine by that of a snapshot, which the monitor has to be told to use."""
    return (f"Load @{path}", "mach set 0")


def load_script(wanted: RenodeParameters, firmware: str, beginning: bytes) -> str:
    """A script that loads the firmware, now and whenever the machine is reset.

    ``beginning``: the first bytes of the firmware.
    """
    if beginning.startswith(ELF):
        command = f"sysbus LoadELF @{firmware}"
    elif beginning.startswith(INTEL_HEX):
        command = f"sysbus LoadHEX @{firmware}"
    elif wanted.load_address:
        command = f"sysbus LoadBinary @{firmware} {wanted.load_address}"
    else:
        raise FirmwareUnknown(
            "the firmware is neither ELF nor Intel HEX, and the class has no loadAddress; flash"
            " an ELF file, or ask the owner of the class to set loadAddress"
        )
    return f'macro reset\n"""\n{command}\n"""\nrunMacro $reset\n'


def lessee_command(command: str, *, raw: bool) -> Snapshot | str:
    """What a lessee wants: a snapshot, or a command. Raises ``CommandRefused``."""
    if problem := _command_problem(command):
        raise CommandRefused(f"a monitor command {problem}")
    found = _SNAPSHOT.fullmatch(command.strip())
    if found:
        return Snapshot(saves=found[1] == "Save", name=found[2])
    if not raw and command.strip() not in LESSEE_COMMANDS:
        allowed = ", ".join((*LESSEE_COMMANDS, "Save @NAME", "Load @NAME"))
        raise CommandRefused(
            f"{command!r} is not allowed on this target; allowed: {allowed}. NAME has lower-case"
            " letters, digits and -. The owner of the class can allow every command with"
            " allowRawMonitor"
        )
    return command.strip()
