"""What users authenticate with: administrator tokens, kubeconfigs, and config files for ``jmp``.

The tokens are created once and kept in the data directory. Config files for ``jmp`` are
those that ``jmp admin create --save`` writes.
"""

from __future__ import annotations

import base64
import json
import secrets
from enum import StrEnum
from pathlib import Path

from bullpen.api import yaml
from bullpen.core.rbac.authorization import AUTHENTICATED, MASTERS, User
from bullpen.core.rbac.bootstrap_policy import ADMIN_USER, VIEW_USER
from bullpen.datadir.directory import SECRET, write_atomically
from bullpen.errors import Refused

TOKEN_BYTES = 32

DRIVERS_ALLOWED = ("jumpstarter_driver_*", "bullpen_*")
"""Client classes that ``jmp`` may load for drivers, unless the user's config differs."""


class Role(StrEnum):
    """The two tokens in the data directory, by their names in its file."""

    ADMIN = "admin"
    VIEW = "view"


USERS = {
    Role.ADMIN: User(name=ADMIN_USER, groups=(MASTERS, AUTHENTICATED)),
    Role.VIEW: User(name=VIEW_USER, groups=(AUTHENTICATED,)),
}


def ensure_tokens(path: Path) -> dict[Role, str]:
    """The token of each user, created on the first start."""
    if path.exists():
        return _read(path)
    tokens = {role: secrets.token_urlsafe(TOKEN_BYTES) for role in USERS}
    write_atomically(path, json.dumps({r.value: t for r, t in tokens.items()}) + "\n", mode=SECRET)
    return tokens


def _read(path: Path) -> dict[Role, str]:
    try:
        content = json.loads(path.read_text())
        return {role: str(content[role.value]) for role in USERS}
    except (OSError, ValueError, KeyError, TypeError):
        raise Refused(
            f"{path} cannot be read; remove it to have new tokens created at the next start"
        ) from None


def client_config(*, namespace: str, name: str, endpoint: str, ca_pem: bytes, token: str) -> str:
    config = _config("ClientConfig", namespace, name, endpoint, ca_pem, token)
    config["drivers"] = {"allow": list(DRIVERS_ALLOWED), "unsafe": False}
    return yaml.dump(config)


def exporter_config(*, namespace: str, name: str, endpoint: str, ca_pem: bytes, token: str) -> str:
    config = _config("ExporterConfig", namespace, name, endpoint, ca_pem, token)
    config["export"] = {}
    return yaml.dump(config)


def _config(
    kind: str, namespace: str, name: str, endpoint: str, ca_pem: bytes, token: str
) -> dict[str, object]:
    return {
        "apiVersion": "jumpstarter.dev/v1alpha1",
        "kind": kind,
        "metadata": {"namespace": namespace, "name": name},
        "endpoint": endpoint,
        "tls": {"ca": base64.b64encode(ca_pem).decode(), "insecure": False},
        "token": token,
    }


def kubeconfig(*, server: str, ca_pem: bytes, user: str, token: str) -> str:
    """A self-contained kubeconfig: the CA and the token are embedded."""
    cluster = {
        "server": server,
        "certificate-authority-data": base64.b64encode(ca_pem).decode(),
    }
    return yaml.dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "bullpen",
            "clusters": [{"name": "bullpen", "cluster": cluster}],
            "contexts": [
                {
                    "name": "bullpen",
                    "context": {"cluster": "bullpen", "user": user, "namespace": "default"},
                }
            ],
            "users": [{"name": user, "user": {"token": token}}],
        }
    )
