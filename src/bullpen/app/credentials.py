"""Administrator tokens: created once, kept in the data directory, written to kubeconfigs."""

from __future__ import annotations

import json
import secrets
from enum import StrEnum
from pathlib import Path

from bullpen.app.datadir import SECRET, write_atomically
from bullpen.core.rbac.authorization import AUTHENTICATED, MASTERS, User
from bullpen.core.rbac.bootstrap_policy import ADMIN_USER, VIEW_USER
from bullpen.errors import Refused, Rejected, Unauthorized
from bullpen.identity import subjects
from bullpen.identity.serviceaccounts import API_AUDIENCE
from bullpen.identity.tokens import Signer
from bullpen.kit.clock import Clock
from bullpen.services.callers import Callers, Claim

TOKEN_BYTES = 32


class Role(StrEnum):
    """The two tokens in the data directory, by their names in its file."""

    ADMIN = "admin"
    VIEW = "view"


USERS = {
    Role.ADMIN: User(name=ADMIN_USER, groups=(MASTERS, AUTHENTICATED)),
    Role.VIEW: User(name=VIEW_USER, groups=(AUTHENTICATED,)),
}


class LabTokens:
    """Recognises tokens of Jumpstarter clients and exporters until they are revoked."""

    def __init__(self, signer: Signer, callers: Callers, clock: Clock) -> None:
        self._signer = signer
        self._callers = callers
        self._clock = clock

    async def identify(self, token: str, audiences: frozenset[str]) -> User | None:
        if API_AUDIENCE not in audiences:
            return None
        try:
            subject = self._signer.verify(token, now=self._clock.now()).subject
        except Unauthorized:
            return None
        claim = Claim(
            token=token, role=subject.role, namespace=subject.namespace, name=subject.name
        )
        try:
            if subject.role is subjects.Role.CLIENT:
                await self._callers.client(claim)
            else:
                await self._callers.exporter(claim)
        except Rejected:
            return None
        return User(
            name=f"{subjects.PREFIX}{subject}", uid=subject.uid, groups=subjects.groups(subject)
        )


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
