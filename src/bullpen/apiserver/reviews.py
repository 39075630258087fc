"""Questions a caller asks about itself: who am I, may I, what may I."""

from __future__ import annotations

from bullpen.api.document import Document
from bullpen.apiserver.auth import Action, Role, User, permits
from bullpen.errors import BadRequest


def answer(kind: str, question: Document, user: User) -> Document:
    """The review with its ``status`` filled in."""
    if question.get("kind", kind) != kind:
        raise BadRequest(f"this path takes a {kind}, not a {question.get('kind')}")
    spec = question.get("spec") or {}
    if not isinstance(spec, dict):
        raise BadRequest("spec must be an object")
    if kind == "SelfSubjectReview":
        status = _who(user)
    elif kind == "SelfSubjectAccessReview":
        status = _may(spec, user)
    else:
        status = _rules(user)
    group = "authentication" if kind == "SelfSubjectReview" else "authorization"
    return {
        "kind": kind,
        "apiVersion": f"{group}.k8s.io/v1",
        "metadata": {"creationTimestamp": None},
        "spec": spec,
        "status": status,
    }


def _who(user: User) -> Document:
    info: Document = {"username": user.name, "groups": list(user.groups)}
    if user.uid:
        info["uid"] = user.uid
    return {"userInfo": info}


def _may(spec: Document, user: User) -> Document:
    attributes = spec.get("resourceAttributes")
    if isinstance(attributes, dict):
        action = Action(
            verb=str(attributes.get("verb", "")),
            group=str(attributes.get("group", "")),
            resource=str(attributes.get("resource", "")),
            subresource=str(attributes.get("subresource", "")),
        )
    else:
        path = spec.get("nonResourceAttributes") or {}
        if not isinstance(path, dict):
            raise BadRequest("nonResourceAttributes must be an object")
        action = Action(verb=str(path.get("verb", "")), path=str(path.get("path", "")))
    return {"allowed": permits(user, action), "reason": f"role {user.role.value}"}


def _rules(user: User) -> Document:
    verbs = {Role.ADMIN: ["*"], Role.VIEW: ["get", "list", "watch"], Role.NONE: []}[user.role]
    rule = {"verbs": verbs, "apiGroups": ["*"], "resources": ["*"]}
    paths = {"verbs": verbs, "nonResourceURLs": ["*"]}
    return {
        "resourceRules": [rule] if verbs else [],
        "nonResourceRules": [paths] if verbs else [],
        "incomplete": user.role is Role.VIEW,
    }
