"""Credentials from a program, as in kubeconfigs of cloud providers (exec plug-ins).

The program is run when its last credentials expired or were rejected, never once per
request.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from bullpen.cluster.access import show_certificate
from bullpen.errors import Refused
from bullpen.kit import times
from bullpen.kit.clock import Clock

SECONDS_MAX = 30.0
ANSWER_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a program needs to run, and to detect when its credentials expire."""

    environment: Mapping[str, str] = field(repr=False)
    clock: Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The command in a kubeconfig."""

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    """Variables that the kubeconfig adds to our environment."""

    api_version: str
    cluster: Mapping[str, object] | None = None
    """The description of the cluster for the program, if it asks for it."""

    hint: str = ""
    """The kubeconfig's hint for users without the program."""


class Plugin:
    """The credentials a command prints."""

    def __init__(self, command: Command, tls: ssl.SSLContext, surroundings: Surroundings) -> None:
        self._command = command
        self._tls = tls
        self._clock = surroundings.clock
        self._environment = {**surroundings.environment, **command.environment}
        self._token: str | None = None
        self._expires: datetime | None = None
        self._asking = asyncio.Lock()

    async def authorization(self) -> str:
        async with self._asking:
            if self._token is None or self._is_over():
                self._take(_status(await self._run()))
        return f"Bearer {self._token}" if self._token else ""

    def rejected(self) -> bool:
        again, self._token = self._token is not None, None
        return again

    def _is_over(self) -> bool:
        return self._expires is not None and self._expires <= self._clock.now()

    def _take(self, status: Mapping[str, Any]) -> None:
        token = str(status.get("token") or "")
        certificate = str(status.get("clientCertificateData") or "")
        key = str(status.get("clientKeyData") or "")
        if not token and not (certificate and key):
            raise Refused(f"{self._command.words[0]} printed neither a token nor a certificate")
        try:
            if certificate and key:
                show_certificate(self._tls, certificate.encode(), key.encode())
            expires = status.get("expirationTimestamp")
            self._expires = times.parse(expires) if expires else None
        except (ssl.SSLError, ValueError) as error:
            raise Refused(f"what {self._command.words[0]} printed is unusable: {error}") from None
        self._token = token

    async def _run(self) -> bytes:
        command, words = self._command, self._command.words
        try:
            process = await asyncio.create_subprocess_exec(
                *words,
                env={**self._environment, "KUBERNETES_EXEC_INFO": json.dumps(_asked(command))},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                limit=ANSWER_BYTES_MAX,
            )
        except OSError as error:
            hint = f"; {command.hint}" if command.hint else ""
            raise Refused(f"{words[0]} cannot be run: {error.strerror}{hint}") from None
        try:
            async with asyncio.timeout(SECONDS_MAX):
                assert process.stdout is not None
                answer = await process.stdout.read(ANSWER_BYTES_MAX)
                code = await process.wait()
        except TimeoutError:
            raise Refused(f"{words[0]} took longer than {SECONDS_MAX:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if code:
            raise Refused(f"{words[0]} exited with {code}; its own output says why")
        return answer


def _asked(command: Command) -> dict[str, object]:
    """The input of the program in its environment."""
    spec: dict[str, object] = {"interactive": False}
    if command.cluster is not None:
        spec["cluster"] = command.cluster
    return {"apiVersion": command.api_version, "kind": "ExecCredential", "spec": spec}


def _status(answer: bytes) -> Mapping[str, Any]:
    try:
        status = json.loads(answer)["status"]
    except (ValueError, KeyError, TypeError):
        raise Refused("a credential plug-in printed no ExecCredential") from None
    if not isinstance(status, dict):
        raise Refused("a credential plug-in printed no ExecCredential")
    return status
