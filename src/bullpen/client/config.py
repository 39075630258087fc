"""Who the client is and where the service is: a config file of ``jmp``."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bullpen.errors import NotFound, Refused

DEFAULT_PORT = 443


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """The parts of a ``ClientConfig`` that leasing needs."""

    name: str
    namespace: str
    endpoint: str
    token: str = field(repr=False)
    ca_pem: bytes = b""
    """Empty for the authorities of the system."""

    insecure: bool = False
    """Trust the certificate that the server presents."""

    drivers_allow: tuple[str, ...] = ()


def load(path: Path) -> ClientConfig:
    """Read a config file. Raises ``NotFound`` or ``Refused``."""
    from bullpen.api import yaml

    try:
        document = yaml.load(path.read_bytes())
        meta, tls = document["metadata"], document.get("tls") or {}
        drivers = document.get("drivers") or {}
        allow = ("UNSAFE",) if drivers.get("unsafe") else tuple(drivers.get("allow") or ())
        return ClientConfig(
            name=meta["name"],
            namespace=meta["namespace"],
            endpoint=document["endpoint"],
            token=document["token"],
            ca_pem=base64.b64decode(tls.get("ca") or ""),
            insecure=bool(tls.get("insecure")),
            drivers_allow=allow,
        )
    except FileNotFoundError:
        raise NotFound(f"the client config {path} does not exist") from None
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise Refused(f"{path} cannot be used as a client config: {error!r}") from None


def default_data_directory(environment: Mapping[str, str], home: Path) -> Path:
    """``$BULLPEN_DATA``, or the standard directory for application data."""
    if chosen := environment.get("BULLPEN_DATA"):
        return Path(chosen)
    base = environment.get("XDG_DATA_HOME") or str(home / ".local" / "share")
    return Path(base) / "bullpen"


def find(environment: Mapping[str, str], data: Path, home: Path) -> ClientConfig:
    """The client of the environment, of the data directory, or the current one of ``jmp``.

    Raises ``NotFound`` with the ways to name one.
    """
    named = ("JMP_NAME", "JMP_NAMESPACE", "JMP_ENDPOINT", "JMP_TOKEN")
    if all(environment.get(name) for name in named):
        return _of_environment(environment)
    if (data / "clients" / "default.yaml").exists():
        return load(data / "clients" / "default.yaml")
    base = Path(
        environment.get("JMP_CLIENT_CONFIG_HOME")
        or Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "jumpstarter"
    )
    if (base / "config.yaml").exists():
        return load(base / "clients" / f"{_current(base / 'config.yaml')}.yaml")
    raise NotFound(
        f"there is no client: neither {data}/clients/default.yaml nor {base}/config.yaml exists."
        " Name one with --client-config, or run 'bullpen up' or 'jmp login' first"
    )


def _of_environment(environment: Mapping[str, str]) -> ClientConfig:
    allow = environment.get("JMP_DRIVERS_ALLOW", "")
    return ClientConfig(
        name=environment["JMP_NAME"],
        namespace=environment["JMP_NAMESPACE"],
        endpoint=environment["JMP_ENDPOINT"],
        token=environment["JMP_TOKEN"],
        insecure=environment.get("JMP_GRPC_INSECURE") == "1",
        drivers_allow=tuple(part for part in allow.split(",") if part),
    )


def _current(path: Path) -> str:
    from bullpen.api import yaml

    try:
        return str(yaml.load(path.read_bytes())["config"]["current-client"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise Refused(f"{path} names no current client: {error!r}") from None


def authorities(config: ClientConfig, endpoint: str) -> bytes | None:
    """The certificates to trust at an endpoint; None for those of the system."""
    if not config.insecure:
        return config.ca_pem or None
    host, _, port = endpoint.rpartition(":")
    presented = ssl.get_server_certificate((host or endpoint, int(port or DEFAULT_PORT)))
    return presented.encode()
