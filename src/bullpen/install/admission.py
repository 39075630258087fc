"""What the CRDs cannot refuse, as admission policies of the cluster.

The embedded API server refuses the same by itself (``api.resources``).
"""

from __future__ import annotations

from bullpen.api.kinds.exporterset import SCALE_TO_ZERO, ExporterSet
from bullpen.api.paths import Document
from bullpen.api.resources import RESOURCES
from bullpen.install.values import Values, label

API_VERSION = "admissionregistration.k8s.io/v1"


def lab_policies(values: Values) -> list[Document]:
    """If the namespace of the installation is the only lab."""
    here = {"matchLabels": {"kubernetes.io/metadata.name": values.namespace}}
    return _scale_to_zero(values, {"matchResources": {"namespaceSelector": here}})


def cluster_policies(values: Values) -> list[Document]:
    """If every namespace may hold a lab."""
    return _scale_to_zero(values, {})


def _scale_to_zero(values: Values, where: Document) -> list[Document]:
    """Refuses a Scale of 0; in a Scale, the API server leaves out a 0."""
    resource = RESOURCES.of(ExporterSet)
    # Unlike in the names of roles, the namespace is in the middle: Helm's linter leaves it empty.
    name = f"bullpen-{values.namespace}-scale"
    metadata = label(values, name, "controller", namespaced=False)
    rule = {
        "apiGroups": [resource.group],
        "apiVersions": ["*"],
        "operations": ["UPDATE"],
        "resources": [f"{resource.plural}/scale"],
    }
    check = {
        "expression": "has(object.spec.replicas) && object.spec.replicas > 0",
        "message": f"spec.replicas: {SCALE_TO_ZERO}",
        "reason": "Invalid",
    }
    policy = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [check],
    }
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
