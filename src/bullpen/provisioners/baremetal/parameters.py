"""``parameters`` of a ProviderConfig of hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bullpen.api.fields import Struct, about

HOSTS_MAX = 200
SLOTS_MAX = 500
NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
KEY_PATTERN = r"^[a-z0-9@.-]+ [A-Za-z0-9+/=]+( .*)?$"
PATH_PATTERN = r"^([/~][^\x00\n]*)?$"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostParameters(Struct):
    """A host, how it is reached, and how much may run there."""

    name: str = field(
        metadata=about(
            "Identifies it in messages and on Exporters.", required=True, pattern=NAME_PATTERN
        )
    )
    address: str = field(
        metadata=about("Host name or address.", required=True, min_length=1, max_length=253)
    )
    host_key: str = field(
        metadata=about(
            "Its public key, as in /etc/ssh/ssh_host_ed25519_key.pub. A host with any other key"
            " is not used.",
            required=True,
            pattern=KEY_PATTERN,
        )
    )
    slots: int = field(
        metadata=about(
            "The most instances that run there at a time.",
            required=True,
            minimum=0,
            maximum=SLOTS_MAX,
        )
    )
    port: int = field(
        default=22, metadata=about("Port of its SSH server.", minimum=1, maximum=65535)
    )
    user: str = field(
        default="root",
        metadata=about("User that the agent runs as.", min_length=1, max_length=64),
    )
    arch: str = field(
        default="",
        metadata=about("Its architecture, as uname -m says it. If given, it must be so."),
    )
    labels: Mapping[str, str] = field(
        default_factory=dict,
        metadata=about("Labels for scheduling.nodeSelector of classes."),
    )
    drain: bool = field(
        default=False,
        metadata=about("Start nothing there any more; leases that it has go on."),
    )
    python: str = field(
        default="python3", metadata=about("Its Python, of the version of this service's.")
    )
    directory: str = field(
        default="",
        metadata=about(
            "Directory for everything of ours there; if empty, /var/lib/bullpen-host for root,"
            " and ~/.local/share/bullpen-host for others.",
            pattern=PATH_PATTERN,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsParameters(Struct):
    """The hosts of a ProviderConfig."""

    hosts: tuple[HostParameters, ...] = field(
        metadata=about(
            "The hosts.", required=True, min_items=1, max_items=HOSTS_MAX, list_keys=("name",)
        )
    )
