"""The tokens of people: made once, kept in the data directory, written to kubeconfigs."""

from __future__ import annotations

import base64
import json
import secrets
from pathlib import Path

from bullpen.api.yaml import dump
from bullpen.apiserver.auth import Role, User
from bullpen.app.files import SECRET, write_atomically
from bullpen.errors import Refused, Unauthorized
from bullpen.identity.subjects import PREFIX
from bullpen.identity.tokens import Signer
from bullpen.kit.clock import Clock

TOKEN_BYTES = 32

USERS = {
    Role.ADMIN: User(
        name="bullpen:admin", role=Role.ADMIN, groups=("system:masters", "system:authenticated")
    ),
    Role.VIEW: User(name="bullpen:view", role=Role.VIEW),
}


class LabTokens:
    """Recognises tokens of Jumpstarter clients and exporters: known, and without any right."""

    def __init__(self, signer: Signer, clock: Clock) -> None:
        self._signer = signer
        self._clock = clock

    def identify(self, token: str) -> User | None:
        try:
            claims = self._signer.verify(token, now=self._clock.now())
        except Unauthorized:
            return None
        return User(name=f"{PREFIX}{claims.subject}", role=Role.NONE)


def ensure_tokens(path: Path) -> dict[Role, str]:
    """The token of each role, made on the first start."""
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
            f"{path} cannot be read; remove it to have new tokens made at the next start"
        ) from None


def kubeconfig(*, server: str, ca_pem: bytes, user: str, token: str) -> str:
    """A kubeconfig that needs nothing else: the authority and the token are inside."""
    cluster = {
        "server": server,
        "certificate-authority-data": base64.b64encode(ca_pem).decode(),
    }
    return dump(
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
