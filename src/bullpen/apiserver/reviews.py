"""Requests that are answered and not stored: access reviews and tokens.

Reviews, which are answered and not stored: identity and access of a user.

The ``token`` subresource of ServiceAccounts: a TokenRequest in, a signed token out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from bullpen.api import codec
from bullpen.api.paths import Document, decode, shown
from bullpen.apiserver.authentication import Authenticator, user_of_token
from bullpen.apiserver.routes import ObjectRoute, ReviewRoute
from bullpen.core.rbac.authorization import AccessIndex, Attributes, User
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
from bullpen.registry.messages import invalid_kind
from bullpen.registry.registry import Registry


class Reviews:
    def __init__(self, index: AccessIndex, authenticators: tuple[Authenticator, ...]) -> None:
        self._index = index
        self._authenticators = authenticators

    async def answer(self, route: ReviewRoute, question: Document, user: User) -> Document:
        """The review with its ``status`` filled in."""
        if question.get("kind", route.kind) != route.kind:
            raise BadRequest(f"this path takes a {route.kind}, not a {question.get('kind')}")
        spec = _mapping(question.get("spec") or {}, "spec")
        if route.kind == "TokenReview":
            status = await self._token(spec)
            # The token is not repeated, so that no log of responses contains it.
            spec = {key: value for key, value in spec.items() if key != "token"}
        else:
            status = self._ANSWERS[route.kind](self, route, spec, user)
        return {
            "kind": route.kind,
            "apiVersion": f"{route.group}/v1",
            "metadata": {"creationTimestamp": None},
            "spec": spec,
            "status": status,
        }

    def _who_am_i(self, route: ReviewRoute, spec: Document, user: User) -> Document:
        return {"userInfo": _user_info(user)}

    def _may_i(self, route: ReviewRoute, spec: Document, user: User) -> Document:
        return self._decision(route, user, spec)

    def _may_they(self, route: ReviewRoute, spec: Document, user: User) -> Document:
        return self._decision(route, _subject(route, spec), spec)

    def _what_may_i(self, route: ReviewRoute, spec: Document, user: User) -> Document:
        namespace = _text(spec, "namespace")
        if not namespace:
            raise BadRequest("no namespace on request")
        rules = [codec.encode(rule) for rule in self._index.rules_of(user, namespace)]
        return {
            "resourceRules": [rule for rule in rules if "resources" in rule],
            "nonResourceRules": [rule for rule in rules if "nonResourceURLs" in rule],
            "incomplete": False,
        }

    def _decision(self, route: ReviewRoute, user: User, spec: Document) -> Document:
        attributes = _attributes(route, spec)
        if route.namespace and attributes.namespace != route.namespace:
            raise BadRequest(
                f"spec.resourceAttributes.namespace: must match namespace: {route.namespace}"
            )
        decision = self._index.decide(user, attributes)
        status: Document = {"allowed": decision.allowed}
        if decision.reason:
            status["reason"] = decision.reason
        return status

    async def _token(self, spec: Document) -> Document:
        token = _text(spec, "token")
        if not token:
            raise BadRequest("token must be set in the spec of a TokenReview")
        audiences = frozenset(_texts(spec, "audiences")) or frozenset({API_AUDIENCE})
        user = await user_of_token(token, self._authenticators, audiences)
        if user is None:
            return {"authenticated": False, "user": {}, "error": "the token is not valid here"}
        status: Document = {"authenticated": True, "user": _user_info(user)}
        if spec.get("audiences"):
            status["audiences"] = sorted(audiences)
        return status

    _ANSWERS: Mapping[str, Callable[[Reviews, ReviewRoute, Document, User], Document]] = {
        "SelfSubjectReview": _who_am_i,
        "SelfSubjectAccessReview": _may_i,
        "SubjectAccessReview": _may_they,
        "LocalSubjectAccessReview": _may_they,
        "SelfSubjectRulesReview": _what_may_i,
    }


def _user_info(user: User) -> Document:
    info: Document = {"username": user.name, "groups": list(user.groups)}
    if user.uid:
        info["uid"] = user.uid
    if user.extra:
        info["extra"] = {key: list(values) for key, values in user.extra.items()}
    return info


def _subject(route: ReviewRoute, spec: Document) -> User:
    user, groups = _text(spec, "user"), _texts(spec, "groups")
    if not user and not groups:
        cause = Cause(
            "spec.user",
            'Invalid value: "": at least one of user or group must be specified',
        )
        raise invalid_kind(f"{route.kind}.{route.group}", "", (cause,))
    return User(name=user, uid=_text(spec, "uid"), groups=tuple(groups))


def _attributes(route: ReviewRoute, spec: Document) -> Attributes:
    resource, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if (resource is None) == (path is None):
        cause = Cause(
            "spec.resourceAttributes",
            "Invalid value: exactly one of nonResourceAttributes or resourceAttributes"
            " must be specified",
        )
        raise invalid_kind(f"{route.kind}.{route.group}", "", (cause,))
    if resource is None:
        found = _mapping(path, "spec.nonResourceAttributes")
        return Attributes(verb=_text(found, "verb"), path=_text(found, "path"))
    found = _mapping(resource, "spec.resourceAttributes")
    return Attributes(
        verb=_text(found, "verb"),
        group=_text(found, "group"),
        # A question about no resource at all is about all of them.
        resource=_text(found, "resource") or "*",
        subresource=_text(found, "subresource"),
        namespace=_text(found, "namespace"),
        name=_text(found, "name"),
    )


def _mapping(value: Any, name: str) -> Document:
    if not isinstance(value, dict):
        raise BadRequest(f"{name} must be an object")
    return value


def _text(values: Document, name: str) -> str:
    found = values.get(name)
    if found is not None and not isinstance(found, str):
        raise BadRequest(f"{name} must be a string")
    return found or ""


def _texts(values: Document, name: str) -> list[str]:
    found = values.get(name) or []
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise BadRequest(f"{name} must be a list of strings")
    return found


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
