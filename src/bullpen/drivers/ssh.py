"""SSH to a machine whose host key is known: the published driver trusts any.

The lessee's own ``ssh`` compares the key of the machine with the one that it was created with.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from jumpstarter.common.exceptions import ConfigurationError
from jumpstarter.driver import export
from jumpstarter_driver_ssh.driver import SSHWrapper

ALIAS = "bullpen-target"
"""The name of the machine to ``ssh``, which sees the address of a forwarded port."""

KEY = re.compile(r"ssh-[a-z0-9-]+ [A-Za-z0-9+/=]+")


@dataclass(kw_only=True)
class Ssh(SSHWrapper):  # type: ignore[misc]
    """Clients see the published driver, ``j ssh``, with another command."""

    host_key: str
    """Public key of the machine, as in ``/etc/ssh/ssh_host_ed25519_key.pub``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not KEY.fullmatch(self.host_key):
            raise ConfigurationError("host_key must be a type and a key in base64")

    @export  # type: ignore[untyped-decorator]
    def get_ssh_command(self) -> str:
        options = (
            "StrictHostKeyChecking=yes",
            "UserKnownHostsFile=/dev/null",
            "GlobalKnownHostsFile=/dev/null",
            f"HostKeyAlias={ALIAS}",
            f"KnownHostsCommand=/bin/echo {ALIAS} {self.host_key}",
            "LogLevel=ERROR",
        )
        return shlex.join(("ssh", *(part for option in options for part in ("-o", option))))
