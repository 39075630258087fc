"""Who may do what: for each process exactly what it does, and no more.

A test records what the processes ask of the API server and compares.
"""

from __future__ import annotations

from collections.abc import Mapping

from bullpen.api.document import Document
from bullpen.app.install.common import label, name_of
from bullpen.app.install.values import Values

JUMPSTARTER, VIRTUAL = "jumpstarter.dev", "virtualtarget.jumpstarter.dev"
READ = ("get", "list", "watch")
LOOK = ("list", "watch")

Grants = Mapping[tuple[str, str], tuple[str, ...]]
"""Verbs by API group and resource."""

_SEEN: Grants = {
    (JUMPSTARTER, "clients"): LOOK,
    (JUMPSTARTER, "exporteraccesspolicies"): LOOK,
    (JUMPSTARTER, "exporters"): LOOK,
    (JUMPSTARTER, "leases"): LOOK,
    (VIRTUAL, "exportersets"): LOOK,
    (VIRTUAL, "virtualtargetclasses"): LOOK,
    ("", "configmaps"): LOOK,
    ("", "secrets"): LOOK,
}
"""What every controller has a view of."""

EVENTS: Grants = {("", "events"): ("create", "update")}

LAB: dict[str, Grants] = {
    "controller": {
        **_SEEN,
        **EVENTS,
        (JUMPSTARTER, "clients"): (*READ, "create"),
        (JUMPSTARTER, "clients/status"): ("update",),
        (JUMPSTARTER, "exporters"): (*READ, "update"),
        (JUMPSTARTER, "exporters/status"): ("update",),
        (JUMPSTARTER, "leases"): (*READ, "create", "update", "delete"),
        (JUMPSTARTER, "leases/status"): ("update",),
        ("", "configmaps"): (*LOOK, "create", "patch"),
        ("", "secrets"): (*LOOK, "create", "update"),
    },
    "provisioner": {
        **_SEEN,
        **EVENTS,
        (JUMPSTARTER, "exporters"): (*READ, "create", "update", "delete"),
        # Admission on some clusters asks for this of whoever blocks an owner's deletion.
        (JUMPSTARTER, "exporters/finalizers"): ("update",),
        (VIRTUAL, "exportersets"): READ,
        (VIRTUAL, "exportersets/finalizers"): ("update",),
        (VIRTUAL, "exportersets/status"): ("update",),
        ("", "configmaps"): READ,
        ("", "pods"): (*READ, "create", "update", "delete"),
        ("", "secrets"): (*LOOK, "create", "patch"),
    },
    "router": {
        **EVENTS,
        (JUMPSTARTER, "leases"): READ,
        (JUMPSTARTER, "leases/status"): ("update",),
    },
}
"""In the namespaces of labs, by process."""

HOME: dict[str, Grants] = {
    "controller": {
        ("coordination.k8s.io", "leases"): (*READ, "create", "update"),
        ("", "secrets"): ("get", "create"),
    },
    "provisioner": {("coordination.k8s.io", "leases"): (*READ, "create", "update")},
    "router": {
        ("coordination.k8s.io", "leases"): ("get", "create", "update", "delete"),
        ("", "secrets"): ("get", "create"),
    },
}
"""In the namespace of the installation: keys, who leads, which routers there are."""

PROCESSES = tuple(LAB)
SEE_NAMESPACES = ("controller", "provisioner")


def accounts(values: Values) -> list[Document]:
    """One identity for each process, and one without any right for targets."""
    return [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": label(values, name_of(process), process),
            "automountServiceAccountToken": False,
            "imagePullSecrets": values.get("imagePullSecrets"),
        }
        for process in (*PROCESSES, "target")
    ]


def home_roles(values: Values) -> list[Document]:
    found: list[Document] = []
    for process in PROCESSES:
        found += _granted(values, process, _rules(HOME[process]), "home", cluster=False)
    return found


def lab_roles(values: Values) -> list[Document]:
    """Where the only lab is the namespace of the installation."""
    found: list[Document] = []
    for process in PROCESSES:
        found += _granted(values, process, _rules(LAB[process]), "lab", cluster=False)
    for process in SEE_NAMESPACES:
        found += _granted(values, process, [_own_namespace(values)], "namespace", cluster=True)
    return found


def cluster_roles(values: Values) -> list[Document]:
    """Where every namespace may hold a lab."""
    found: list[Document] = []
    for process in PROCESSES:
        seen = {("", "namespaces"): LOOK} if process in SEE_NAMESPACES else {}
        rules = _rules({**LAB[process], **seen})
        found += _granted(values, process, rules, "lab", cluster=True)
    return found


def _granted(
    values: Values, process: str, rules: list[Document], purpose: str, *, cluster: bool
) -> list[Document]:
    """A role and who has it. Names of cluster roles say which installation they are of."""
    prefix = "Cluster" if cluster else ""
    name = f"{name_of(process)}-{purpose}"
    if cluster:
        name = f"{values.namespace}-{name}"
    metadata = label(values, name, process, namespaced=not cluster)
    role: Document = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": f"{prefix}Role",
        "metadata": metadata,
        "rules": rules,
    }
    binding: Document = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": f"{prefix}RoleBinding",
        "metadata": metadata,
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": f"{prefix}Role",
            "name": name,
        },
        "subjects": [
            {
                "kind": "ServiceAccount",
                "name": name_of(process),
                "namespace": values.namespace,
            }
        ],
    }
    return [role, binding]


def _rules(grants: Grants) -> list[Document]:
    """One rule for each group and set of verbs, in a stable order."""
    found: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (group, resource), verbs in grants.items():
        found.setdefault((group, verbs), []).append(resource)
    return [
        {"apiGroups": [group], "resources": sorted(resources), "verbs": list(verbs)}
        for (group, verbs), resources in sorted(found.items())
    ]


def _own_namespace(values: Values) -> Document:
    """Seeing one namespace, though Namespaces belong to the cluster."""
    return {
        "apiGroups": [""],
        "resources": ["namespaces"],
        "resourceNames": [values.namespace],
        "verbs": list(LOOK),
    }
