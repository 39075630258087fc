"""The front proxy of a cluster: its API server, when it passes requests on to ours.

The API server authenticates a caller and names it in headers. They are believed only on a
connection with the client certificate of the front proxy, which the cluster publishes the
authority of.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote

from bullpen.api.kinds.core import ConfigMap
from bullpen.api.objects import Objects
from bullpen.core.rbac.authorization import User
from bullpen.errors import NotFound, Refused, Unauthorized

NAMESPACE, NAME = "kube-system", "extension-apiserver-authentication"
PREFIX = "x-remote-"
USER, UID, GROUP, EXTRA = "x-remote-user", "x-remote-uid", "x-remote-group", "x-remote-extra-"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontProxy:
    """How the API server of the cluster identifies itself."""

    ca_pem: str
    """The authority of its client certificate."""

    names: frozenset[str]
    """Accepted common names; empty for any."""

    def accepts(self, name: str) -> bool:
        return not self.names or name in self.names


async def published(objects: Objects) -> FrontProxy:
    """What the cluster publishes about its front proxy. Raises ``Refused``."""
    try:
        return read(await objects.get(ConfigMap, NAMESPACE, NAME))
    except NotFound:
        raise Refused(
            f"there is no ConfigMap {NAMESPACE}/{NAME}: this cluster has no aggregation layer;"
            " disable the API port (chart value apiService.enabled)"
        ) from None


def read(config: ConfigMap) -> FrontProxy:
    """The front proxy that the ConfigMap describes. Raises ``Refused``."""
    found = config.data
    headers = {
        "requestheader-username-headers": USER,
        "requestheader-group-headers": GROUP,
        "requestheader-extra-headers-prefix": EXTRA,
    }
    for key, ours in headers.items():
        if ours not in {name.lower() for name in json.loads(found.get(key, "[]"))}:
            raise Refused(f"{NAMESPACE}/{NAME}: {key} must contain {ours}")
    ca_pem = found.get("requestheader-client-ca-file", "")
    if not ca_pem:
        raise Refused(f"{NAMESPACE}/{NAME} has no requestheader-client-ca-file: aggregation is off")
    names = json.loads(found.get("requestheader-allowed-names", "[]"))
    return FrontProxy(ca_pem=ca_pem, names=frozenset(names))


def user_of_headers(headers: Iterable[tuple[str, str]]) -> User:
    """The user that the front proxy names. Raises ``Unauthorized``."""
    names: list[str] = []
    groups: list[str] = []
    uid = ""
    extra: dict[str, tuple[str, ...]] = {}
    for name, value in headers:
        if name == USER:
            names.append(value)
        elif name == UID:
            uid = value
        elif name == GROUP:
            groups.append(value)
        elif name.startswith(EXTRA):
            key = unquote(name.removeprefix(EXTRA))
            extra[key] = (*extra.get(key, ()), value)
    if len(names) != 1 or not names[0]:
        raise Unauthorized("the front proxy named no user")
    return User(name=names[0], uid=uid, groups=tuple(groups), extra=extra)
