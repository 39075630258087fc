"""What the CRDs cannot refuse, as admission policies of the cluster.

The embedded API server refuses the same by itself (``api.resources``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bullpen.api.admission_rules import AdmissionRule, each, is_duration
from bullpen.api.kinds.deviceclaim import DeviceClaim
from bullpen.api.kinds.exporterset import SCALE_TO_ZERO, ExporterSet
from bullpen.api.paths import Document
from bullpen.api.resource import Resource
from bullpen.api.resources import RESOURCES
from bullpen.core.rbac.admin_access import ADMIN_ACCESS
from bullpen.install.values import Values, label

API_VERSION = "admissionregistration.k8s.io/v1"


def lab_policies(values: Values) -> list[Document]:
    """If the namespace of the installation is the only lab."""
    here = {"matchLabels": {"kubernetes.io/metadata.name": values.namespace}}
    return _policies(values, {"matchResources": {"namespaceSelector": here}})


def cluster_policies(values: Values) -> list[Document]:
    """If every namespace may hold a lab."""
    return _policies(values, {})


def object_rules(resource: Resource) -> tuple[AdmissionRule, ...]:
    """What an object of this kind must satisfy besides its schema."""
    return (*_duration_rules(resource), *resource.admission)


def _policies(values: Values, where: Document) -> list[Document]:
    written = _policy(values, where, "scale", *_scale_to_zero())
    written += _policy(values, where, "admin-access", *_admin_access(), reason="Forbidden")
    for resource in RESOURCES:
        rules = object_rules(resource) if resource.custom else ()
        if rules:
            written += _policy(values, where, resource.plural, *_objects(resource, rules))
    return written


def _scale_to_zero() -> tuple[Document, tuple[AdmissionRule, ...]]:
    """Refuses a Scale of 0; in a Scale, the API server leaves out a 0."""
    resource = RESOURCES.of(ExporterSet)
    rule = AdmissionRule(
        expression="has(object.spec.replicas) && object.spec.replicas > 0",
        message=f"spec.replicas: {SCALE_TO_ZERO}",
    )
    return _constraints(resource, "UPDATE", part="/scale"), (rule,)


def _admin_access() -> tuple[Document, tuple[AdmissionRule, ...]]:
    """Refuses claims with admin access to users without the verb (``core.rbac.admin_access``)."""
    resource = RESOURCES.of(DeviceClaim)
    right = (
        f"authorizer.group('{resource.group}').resource('{resource.plural}')"
        f".namespace(object.metadata.namespace).check('{ADMIN_ACCESS}').allowed()"
    )
    rule = AdmissionRule(
        expression="!(has(object.spec.adminAccess) && object.spec.adminAccess)"
        " || (oldObject != null && has(oldObject.spec.adminAccess) && oldObject.spec.adminAccess)"
        f" || {right}",
        message=f"spec.adminAccess: needs the verb {ADMIN_ACCESS} on {resource.plural}",
    )
    return _constraints(resource, "CREATE", "UPDATE"), (rule,)


def _objects(
    resource: Resource, rules: tuple[AdmissionRule, ...]
) -> tuple[Document, tuple[AdmissionRule, ...]]:
    # As in the embedded server, a rule that became stricter blocks no update of anything else.
    changed = {
        "name": "spec-changed",
        "expression": "oldObject == null || object.spec != oldObject.spec",
    }
    return {**_constraints(resource, "CREATE", "UPDATE"), "matchConditions": [changed]}, rules


def _constraints(resource: Resource, *operations: str, part: str = "") -> Document:
    rule = {
        "apiGroups": [resource.group],
        "apiVersions": ["*"],
        "operations": list(operations),
        "resources": [f"{resource.plural}{part}"],
    }
    return {"matchConstraints": {"resourceRules": [rule]}}


def _policy(
    values: Values,
    where: Document,
    subject: str,
    constraints: Document,
    rules: tuple[AdmissionRule, ...],
    *,
    reason: str = "Invalid",
) -> list[Document]:
    # Unlike in the names of roles, the namespace is in the middle: Helm's linter leaves it empty.
    name = f"bullpen-{values.namespace}-{subject}"
    metadata = label(values, name, "controller", namespaced=False)
    checks = [
        {"expression": rule.expression, "message": rule.message, "reason": reason} for rule in rules
    ]
    policy = {"failurePolicy": "Fail", **constraints, "validations": checks}
    binding = {"policyName": name, "validationActions": ["Deny"], **where}
    return [
        {
            "apiVersion": API_VERSION,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": metadata,
            "spec": policy,
        },
        {
            "apiVersion": API_VERSION,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": metadata,
            "spec": binding,
        },
    ]


def _duration_rules(resource: Resource) -> Iterator[AdmissionRule]:
    spec: Mapping[str, Any] = resource.schema.get("properties", {}).get("spec", {})  # type: ignore[attr-defined]
    for path in _durations(spec, "spec"):
        yield AdmissionRule(
            expression=each(path, is_duration),
            message=f"{path}: must be a number with a unit, such as 300ms, 1.5h or 1h30m",
        )


def _durations(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    """The paths of durations: their format allows words such as days, which we do not."""
    if schema.get("format") == "duration":
        yield path
    for name, part in schema.get("properties", {}).items():
        yield from _durations(part, f"{path}.{name}")
    if "items" in schema:
        yield from _durations(schema["items"], f"{path}.*")
