"""systemd: the units of the service and of exporters, and the messages to the service manager.

Each unit carries a digest of itself in its first line, so that a later install can tell
a unit as it was written from one that a person has changed since.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
from dataclasses import dataclass
from pathlib import Path

SERVICE = "bullpen.service"
EXPORTER = "bullpen-exporter@.service"

MARK = "# Written by `bullpen service install`, sha256:"

DESCRIPTORS = 65_536
"""What the service wants; ``app.process`` raises its own limit as far as this one allows."""

START_SECONDS_MAX = 600
"""For reading a large database and finding it sound."""

STOP_SECONDS_MAX = 90
"""For ending every virtual target and writing the last backup."""

DROPPED = (
    "CAP_AUDIT_CONTROL",
    "CAP_BLOCK_SUSPEND",
    "CAP_MAC_ADMIN",
    "CAP_MAC_OVERRIDE",
    "CAP_SYSLOG",
    "CAP_SYS_BOOT",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_TIME",
    "CAP_WAKE_ALARM",
)
"""Capabilities of root that neither the service nor the sandbox of its targets needs."""

log = logging.getLogger("bullpen.app")
VARIABLE = "NOTIFY_SOCKET"
READY = "READY=1"
STOPPING = "STOPPING=1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What a unit of the service is made from."""

    bullpen: tuple[str, ...]
    """The program, and the arguments that come before those of the unit."""

    jmp: str
    data: Path
    user: bool = False
    """Whether the units are for a user's own systemd."""

    listen: str = ""
    endpoint: str = ""
    port_base: int | None = None
    config: Path | None = None
    exporters: str = ""
    """Directory of exporter configs; specifiers of systemd are allowed."""


def units(choices: Choices) -> dict[str, str]:
    """Both units by name, marked with their digests."""
    return {
        SERVICE: _marked(_service(choices)),
        EXPORTER: _marked(_exporter(choices)),
    }


def is_as_written(text: str) -> bool:
    """Whether a unit is still what an install has written."""
    first, _, rest = text.partition("\n")
    return first == f"{MARK}{_digest(rest)}"


def word(text: str) -> str:
    """A word of a command line that systemd reads as exactly ``text``."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return plain if plain and not set(plain) & set(" \t'\"\\;") else f'"{plain}"'


def _marked(body: str) -> str:
    return f"{MARK}{_digest(body)}\n{body}"


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def _service(choices: Choices) -> str:
    command = [*choices.bullpen, "up", "--data", str(choices.data)]
    if choices.listen:
        command += ["--listen", choices.listen]
    if choices.endpoint:
        command += ["--endpoint", choices.endpoint]
    if choices.port_base is not None:
        command += ["--port-base", str(choices.port_base)]
    if choices.config is not None:
        command += ["--config", str(choices.config)]
    return f"""\
[Unit]
Description=Bullpen, a device-lab service
{_after_network(choices)}RequiresMountsFor={_path(choices.data)}

[Service]
# Started means that it answers, so that exporters on this machine start after it.
Type=notify
NotifyAccess=main
TimeoutStartSec={START_SECONDS_MAX}
ExecStart={" ".join(map(word, command))}
Restart=on-failure
RestartSec=2
# Wrong usage, invalid settings, or a directory, port or key that cannot be used: a person must act.
RestartPreventExitStatus=2 5 9
# The service ends its virtual targets itself; what is left after that is killed.
KillMode=mixed
TimeoutStopSec={STOP_SECONDS_MAX}
LimitNOFILE={DESCRIPTORS}
UMask=0077
# Virtual targets get limits in control groups of their own, below that of the service.
Delegate=yes
{_hardening(choices)}
[Install]
WantedBy={_target(choices)}
"""


def _hardening(choices: Choices) -> str:
    """What can be taken away; settings that mount, or forbid namespaces, break the sandbox."""
    if choices.user:
        return ""
    return f"""\
# The sandbox of virtual targets needs user namespaces, mounts, devices and other users; settings
# such as NoNewPrivileges=, ProtectSystem=, PrivateDevices= and RestrictNamespaces= break it.
CapabilityBoundingSet=~{" ".join(DROPPED)}
SystemCallArchitectures=native
RestrictRealtime=yes
LockPersonality=yes
"""


def _exporter(choices: Choices) -> str:
    config = f"{choices.exporters}/%i.yaml"
    return f"""\
[Unit]
Description=Jumpstarter exporter %i
{_after_network(choices)}After={SERVICE}

[Service]
Type=exec
ExecStart={word(choices.jmp)} run --exporter-config {config}
# An exporter ends when its controller is away for long, and is to come back.
Restart=always
RestartSec=5
KillMode=mixed
TimeoutStopSec={STOP_SECONDS_MAX}

[Install]
WantedBy={_target(choices)}
"""


def _after_network(choices: Choices) -> str:
    """A user's systemd does not know the network's target."""
    if choices.user:
        return ""
    return "Wants=network-online.target\nAfter=network-online.target\n"


def _target(choices: Choices) -> str:
    return "default.target" if choices.user else "multi-user.target"


def _path(path: Path) -> str:
    """A path in a list of paths."""
    text = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text}"' if " " in text else text


def notify(state: str) -> None:
    """Send ``state`` to the service manager, if there is one (sd_notify(3)).

    A manager that cannot be reached is no reason to stop serving; it is logged.
    """
    address = os.environ.get(VARIABLE, "")
    if not address:
        return
    # A name that begins with @ is in the abstract namespace.
    name = f"\0{address[1:]}" if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.sendto(state.encode(), name)
    except OSError as error:
        facts = {"key": address, "state": state, "cause": error.strerror}
        log.warning("service manager not notified", extra=facts)
