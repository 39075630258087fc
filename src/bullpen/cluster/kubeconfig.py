"""Where an API server is and how to be somebody there, from a kubeconfig file."""

from __future__ import annotations

import base64
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bullpen.api import yaml
from bullpen.errors import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """An address, what to trust, and who we are: a token, or a client certificate."""

    server: str
    tls: ssl.SSLContext
    token: str = ""


def load(path: Path) -> Access:
    """The current context of a kubeconfig; raises ``Refused`` saying what it lacks."""
    try:
        config = yaml.load(path.read_bytes())
        context = _named(config, "contexts", config["current-context"])["context"]
        cluster = _named(config, "clusters", context["cluster"])["cluster"]
        user = _named(config, "users", context["user"])["user"]
        return Access(
            server=cluster["server"],
            tls=_tls(cluster, user, path.parent),
            token=_token(user, path.parent),
        )
    except (OSError, KeyError, TypeError, ValueError, ssl.SSLError) as error:
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
        # OpenSSL reads certificates from files only; these are gone when the context has them.
        with tempfile.NamedTemporaryFile() as file:
            file.write(certificate + b"\n" + key)
            file.flush()
            context.load_cert_chain(file.name)
    return context


def _material(section: Any, name: str, base: Path) -> bytes:
    """A certificate or key, inline or in a file beside the kubeconfig."""
    if data := section.get(f"{name}-data"):
        return base64.b64decode(data)
    if file := section.get(name):
        return Path(base / file).read_bytes()
    return b""


def _token(user: Any, base: Path) -> str:
    if file := user.get("tokenFile"):
        return Path(base / file).read_text().strip()
    return str(user.get("token", ""))
