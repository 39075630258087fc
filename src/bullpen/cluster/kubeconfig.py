"""Access from a kubeconfig file: certificates, tokens, token files, exec plug-ins."""

from __future__ import annotations

import base64
import ssl
from pathlib import Path
from typing import Any

from bullpen.api import yaml
from bullpen.cluster.access import (
    DEFAULT_NAMESPACE,
    Access,
    Credentials,
    Token,
    TokenFile,
    show_certificate,
)
from bullpen.cluster.plugins import Command, Plugin, Surroundings
from bullpen.errors import BadRequest, Refused


def load(path: Path, *, context: str = "", surroundings: Surroundings | None = None) -> Access:
    """A context of a kubeconfig, the current one unless named.

    Plug-ins are run only if ``surroundings`` are given. Raises ``Refused`` naming what is
    missing.
    """
    try:
        config = yaml.load(path.read_bytes())
        chosen = _named(config, "contexts", context or config["current-context"])["context"]
        cluster = _named(config, "clusters", chosen["cluster"])["cluster"]
        user = _named(config, "users", chosen["user"])["user"] if chosen.get("user") else {}
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
