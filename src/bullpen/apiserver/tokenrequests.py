"""The ``token`` subresource of ServiceAccounts: a TokenRequest in, a signed token out."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from bullpen.api.document import Document, decode
from bullpen.api.paths import shown
from bullpen.apiserver.routes import ObjectRoute
from bullpen.errors import BadRequest, Cause, MethodNotAllowed
from bullpen.identity.serviceaccounts import (
    API_AUDIENCE,
    AUDIENCES_MAX,
    LIFETIME_DEFAULT,
    LIFETIME_MAX,
    LIFETIME_MIN,
    AccountClaims,
    AccountTokens,
)
from bullpen.kit import times
from bullpen.kit.clock import Clock
from bullpen.kit.ids import Ids
from bullpen.registry.refusals import invalid_kind
from bullpen.registry.registry import Registry

KIND, API_VERSION = "TokenRequest", "authentication.k8s.io/v1"


class TokenRequests:
    def __init__(
        self, registry: Registry, tokens: AccountTokens | None, *, clock: Clock, ids: Ids
    ) -> None:
        """Without ``tokens`` every request is rejected: the server has no signing key."""
        self._registry = registry
        self._tokens = tokens
        self._clock = clock
        self._ids = ids

    def answer(self, route: ObjectRoute, request: Document) -> Document:
        """``request`` with a token for the account in its status; raises ``NotFound``."""
        if self._tokens is None:
            raise MethodNotAllowed("this server does not issue tokens for ServiceAccounts")
        if request.get("kind", KIND) != KIND:
            raise BadRequest(f"this path takes a {KIND}, not a {request.get('kind')}")
        namespace, name = route.namespace or "", route.name
        account = decode(self._registry.get(route.resource, namespace, name))["metadata"]
        now = self._clock.now()
        audiences, lifetime = _checked(name, request.get("spec") or {})
        expires = (now + lifetime).replace(microsecond=0)
        token = self._tokens.issue(
            AccountClaims(
                namespace=namespace,
                name=name,
                uid=account["uid"],
                token_id=self._ids.uid(),
                audiences=frozenset(audiences),
                expires=expires,
            ),
            now=now,
        )
        return _answered(account, audiences, expires, lifetime, token)


def _answered(
    account: Document, audiences: list[str], expires: datetime, lifetime: timedelta, token: str
) -> Document:
    return {
        "kind": KIND,
        "apiVersion": API_VERSION,
        "metadata": {"name": account["name"], "namespace": account["namespace"]},
        "spec": {
            "audiences": audiences,
            "expirationSeconds": int(lifetime.total_seconds()),
            "boundObjectRef": None,
        },
        "status": {"token": token, "expirationTimestamp": times.text(expires)},
    }


def _checked(name: str, spec: Any) -> tuple[list[str], timedelta]:
    """The requested audiences and lifetime; raises ``Invalid``."""
    if not isinstance(spec, dict):
        raise BadRequest("spec must be an object")
    audiences = spec.get("audiences") or [API_AUDIENCE]
    seconds = spec.get("expirationSeconds")
    causes = []
    if (
        not isinstance(audiences, list)
        or len(audiences) > AUDIENCES_MAX
        or not all(isinstance(item, str) and item for item in audiences)
    ):
        causes.append(
            Cause("spec.audiences", f"Invalid value: must be at most {AUDIENCES_MAX} texts")
        )
    if seconds is None:
        seconds = int(LIFETIME_DEFAULT.total_seconds())
    if not isinstance(seconds, int) or isinstance(seconds, bool):
        causes.append(Cause("spec.expirationSeconds", "Invalid value: must be a whole number"))
    elif seconds < LIFETIME_MIN.total_seconds():
        why = "may not specify a duration less than 10 minutes"
        causes.append(Cause("spec.expirationSeconds", f"Invalid value: {shown(seconds)}: {why}"))
    if spec.get("boundObjectRef"):
        why = "tokens are bound to their ServiceAccount only"
        causes.append(Cause("spec.boundObjectRef", f"Forbidden: {why}", "FieldValueForbidden"))
    if causes:
        raise invalid_kind(f"{KIND}.authentication.k8s.io", name, tuple(causes))
    return audiences, min(timedelta(seconds=min(seconds, 2**32)), LIFETIME_MAX)
