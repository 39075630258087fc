"""Access to an API server: from a kubeconfig, an exec plug-in or inside a Pod.

Access to an API server: its address, its CA, and our credentials. Credentials are read
before every request, because they change while a process runs: a cluster renews the token
in a file, the credentials of a plug-in expire.

Credentials from a program, as in kubeconfigs of cloud providers (exec plug-ins). The
program is run when its last credentials expired or were rejected, never once per request.

Access from a kubeconfig file: certificates, tokens, token files, exec plug-ins.

Access of a Pod to its own cluster, by the mounted service account.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from bullpen.api import yaml
from bullpen.errors import BadRequest, Refused
from bullpen.kit import times
from bullpen.kit.clock import Clock

DEFAULT_NAMESPACE = "default"


class Credentials(Protocol):
    async def authorization(self) -> str:
        """The ``Authorization`` header to send now; empty if none is needed."""

    def rejected(self) -> bool:
        """The server rejected the credentials; returns whether a retry may get better ones."""


@dataclass(frozen=True, slots=True)
class Token:
    """A constant token; empty if a client certificate is used instead."""

    token: str = field(default="", repr=False)

    async def authorization(self) -> str:
        return f"Bearer {self.token}" if self.token else ""

    def rejected(self) -> bool:
        return False


class TokenFile:
    """A token in a file that is renewed externally."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int] = (0, 0)
        self._token = ""

    async def authorization(self) -> str:
        try:
            found = self._path.stat()
            stamp = (found.st_mtime_ns, found.st_ino)
            if stamp != self._stamp:
                self._token, self._stamp = self._path.read_text().strip(), stamp
        except OSError as error:
            raise Refused(f"the token in {self._path} cannot be read: {error.strerror}") from None
        return f"Bearer {self._token}"

    def rejected(self) -> bool:
        """The file may have been renewed within the resolution of its timestamp."""
        again, self._stamp = self._stamp != (0, 0), (0, 0)
        return again


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    server: str
    tls: ssl.SSLContext
    credentials: Credentials = Token()
    namespace: str = DEFAULT_NAMESPACE
    """The default namespace: that of the Pod, or of the context."""

    server_name: str | None = None
    """The name in the server's certificate, if it is not the host of ``server``."""

    proxy: str | None = None


def show_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Present a client certificate in every handshake from now on."""
    # OpenSSL reads certificates from files only; this one is deleted once it is loaded.
    with tempfile.NamedTemporaryFile() as file:
        file.write(certificate + b"\n" + key)
        file.flush()
        context.load_cert_chain(file.name)


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


def load(
    path: Path,
    *,
    context: str = "",
    surroundings: Surroundings | None = None,
    anonymous: bool = False,
) -> Access:
    """A context of a kubeconfig, the current one unless named.

    Plug-ins are run only if ``surroundings`` are given. ``anonymous`` leaves out its user, also
    from TLS handshakes: an API server takes a client certificate before a token. Raises
    ``Refused`` naming what is missing.
    """
    try:
        config = yaml.load(path.read_bytes())
        chosen = _named(config, "contexts", context or config["current-context"])["context"]
        cluster = _named(config, "clusters", chosen["cluster"])["cluster"]
        named = chosen.get("user") and not anonymous
        user = _named(config, "users", chosen["user"])["user"] if named else {}
        tls = _tls(cluster, user, path.parent)
        return Access(
            server=cluster["server"],
            tls=tls,
            credentials=_credentials(user, cluster, tls, path.parent, surroundings),
            namespace=chosen.get("namespace") or DEFAULT_NAMESPACE,
            server_name=cluster.get("tls-server-name"),
            proxy=cluster.get("proxy-url"),
        )
    except (OSError, KeyError, TypeError, ValueError, AttributeError, BadRequest) as error:
        raise Refused(f"{path} cannot be used as a kubeconfig: {error}") from None


def _named(config: Any, section: str, name: str) -> Any:
    for item in config[section]:
        if item["name"] == name:
            return item
    raise KeyError(f"no {name!r} in {section}")


def _tls(cluster: Any, user: Any, base: Path) -> ssl.SSLContext:
    authority = _material(cluster, "certificate-authority", base)
    context = ssl.create_default_context(cadata=authority.decode() if authority else None)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate, key = (_material(user, f"client-{part}", base) for part in ("certificate", "key"))
    if certificate and key:
        show_certificate(context, certificate, key)
    return context


def _material(section: Any, name: str, base: Path) -> bytes:
    """A certificate or key, inline or in a file relative to the kubeconfig."""
    if data := section.get(f"{name}-data"):
        return base64.b64decode(data)
    if file := section.get(name):
        return Path(base / file).read_bytes()
    return b""


def _credentials(
    user: Any, cluster: Any, tls: ssl.SSLContext, base: Path, surroundings: Surroundings | None
) -> Credentials:
    if user.get("exec"):
        if surroundings is None:
            raise ValueError("its exec plug-in is not run here; use a token or a certificate")
        command = _command(user["exec"], cluster, base)
        return Plugin(command, tls, surroundings)
    if file := user.get("tokenFile"):
        return TokenFile(base / file)
    return Token(str(user.get("token") or ""))


def _command(given: Any, cluster: Any, base: Path) -> Command:
    if given.get("interactiveMode") == "Always":
        raise ValueError("its exec plug-in needs interactive input, which is not available here")
    name = str(given["command"])
    # As in kubectl: a relative path starts at the kubeconfig, a bare name is looked up in PATH.
    program = str(base / name) if "/" in name else name
    return Command(
        words=(program, *(str(word) for word in given.get("args") or ())),
        environment={item["name"]: str(item["value"]) for item in given.get("env") or ()},
        api_version=str(given["apiVersion"]),
        cluster=_told(cluster) if given.get("provideClusterInfo") else None,
        hint=str(given.get("installHint") or "").strip(),
    )


def _told(cluster: Any) -> dict[str, object]:
    """The description of the cluster for a plug-in."""
    told = {"server": cluster["server"]}
    if data := cluster.get("certificate-authority-data"):
        told["certificate-authority-data"] = data
    for extension in cluster.get("extensions") or ():
        if extension["name"] == "client.authentication.k8s.io/exec":
            told["config"] = extension["extension"]
    return told


MOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
HOST, PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"


def is_inside(environment: Mapping[str, str]) -> bool:
    """Whether this process runs in a Pod."""
    return bool(environment.get(HOST) and environment.get(PORT))


def load_in_cluster(environment: Mapping[str, str], mount: Path = MOUNT) -> Access:
    """The service account of this Pod; raises ``Refused`` if it has none."""
    host = environment[HOST]
    try:
        tls = ssl.create_default_context(cafile=str(mount / "ca.crt"))
        namespace = (mount / "namespace").read_text().strip()
    except (OSError, ssl.SSLError) as error:
        raise Refused(
            f"this Pod has no service account in {mount} ({error});"
            " set automountServiceAccountToken, or give --kubeconfig"
        ) from None
    return Access(
        server=f"https://[{host}]:{environment[PORT]}"
        if ":" in host
        else f"https://{host}:{environment[PORT]}",
        tls=tls,
        credentials=TokenFile(mount / "token"),
        namespace=namespace,
    )
