"""RBAC of the installation: each process gets exactly the rights it uses, and no more.

A test records the requests of the processes to the API server and compares.
"""

from __future__ import annotations

from collections.abc import Mapping

from bullpen.api.paths import Document
from bullpen.install.values import Values, label, name_of

JUMPSTARTER, VIRTUAL = "jumpstarter.dev", "virtualtarget.jumpstarter.dev"
DEVICE = "device.jumpstarter.dev"
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
    (VIRTUAL, "virtualtargets"): LOOK,
    ("", "configmaps"): LOOK,
    ("", "secrets"): LOOK,
}
"""Resources that every controller has a view of."""

EVENTS: Grants = {("", "events"): ("create", "update")}

LAB: dict[str, Grants] = {
    "controller": {
        **_SEEN,
        **EVENTS,
        (JUMPSTARTER, "clients"): (*READ, "create"),
        (JUMPSTARTER, "clients/status"): ("update",),
        (JUMPSTARTER, "exporters"): (*READ, "update"),
        (JUMPSTARTER, "exporters/status"): ("update",),
        (DEVICE, "deviceclaims"): (*READ, "delete"),
        (DEVICE, "deviceclaims/status"): ("update",),
        (DEVICE, "devicepools"): LOOK,
        (JUMPSTARTER, "leases"): (*READ, "create", "update", "delete"),
        (JUMPSTARTER, "leases/status"): ("update",),
        ("", "configmaps"): (*LOOK, "create", "patch"),
        ("", "secrets"): (*LOOK, "create", "update"),
    },
    "provisioner": {
        **_SEEN,
        **EVENTS,
        (JUMPSTARTER, "exporters"): (*READ, "create", "update", "delete"),
        # Admission on some clusters requires this right to set blockOwnerDeletion.
        (JUMPSTARTER, "exporters/finalizers"): ("update",),
        # Removals by name are dropped from the spec when the members are gone.
        (VIRTUAL, "exportersets"): (*READ, "update"),
        (VIRTUAL, "providerconfigs"): (*READ, "update"),
        (VIRTUAL, "providerconfigs/status"): ("update",),
        # A finalizer keeps what is needed to delete the machines of a provider.
        (VIRTUAL, "virtualtargetclasses"): (*READ, "update"),
        (VIRTUAL, "exportersets/finalizers"): ("update",),
        (VIRTUAL, "exportersets/status"): ("update",),
        (VIRTUAL, "virtualdisks"): (*READ, "create", "update", "delete"),
        (VIRTUAL, "virtualdisks/status"): ("update",),
        (VIRTUAL, "virtualtargetpools"): (*READ, "update"),
        (VIRTUAL, "virtualtargetpools/finalizers"): ("update",),
        (VIRTUAL, "virtualtargetpools/status"): ("update",),
        (VIRTUAL, "virtualtargets"): (*READ, "create", "update", "delete"),
        (VIRTUAL, "virtualtargets/finalizers"): ("update",),
        (VIRTUAL, "virtualtargets/status"): ("update",),
        ("", "configmaps"): READ,
        ("", "pods"): (*READ, "create", "update", "delete"),
        ("", "secrets"): (*READ, "create", "patch", "update"),
    },
    "router": {
        **EVENTS,
        (JUMPSTARTER, "leases"): READ,
        (JUMPSTARTER, "leases/status"): ("update",),
    },
}
"""Rights in the namespaces of labs, by process."""

HOME: dict[str, Grants] = {
    "controller": {
        ("coordination.k8s.io", "leases"): (*READ, "create", "update"),
        ("", "secrets"): ("get", "create"),
        ("", "pods"): ("get", "list", "patch"),
    },
    "provisioner": {("coordination.k8s.io", "leases"): (*READ, "create", "update")},
    "router": {
        ("coordination.k8s.io", "leases"): ("get", "create", "update", "delete"),
        ("", "secrets"): ("get", "create"),
    },
}
"""Rights in the namespace of the installation: keys, leadership, known routers."""

CLUSTER_SCOPED: dict[str, Grants] = {"controller": {(DEVICE, "deviceclasses"): LOOK}}
"""Rights to kinds without a namespace."""

PROCESSES = tuple(LAB)
SEE_NAMESPACES = ("controller", "provisioner")


def accounts(values: Values) -> list[Document]:
    """A service account for each process, and one without any rights for targets."""
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
    """If the namespace of the installation is the only lab."""
    found: list[Document] = []
    for process in PROCESSES:
        found += _granted(values, process, _rules(LAB[process]), "lab", cluster=False)
    for process in SEE_NAMESPACES:
        rules = [_own_namespace(values), *_rules(CLUSTER_SCOPED.get(process, {}))]
        found += _granted(values, process, rules, "namespace", cluster=True)
    return found


def cluster_roles(values: Values) -> list[Document]:
    """If every namespace may hold a lab."""
    found: list[Document] = []
    for process in PROCESSES:
        seen = {("", "namespaces"): LOOK} if process in SEE_NAMESPACES else {}
        rules = _rules({**LAB[process], **CLUSTER_SCOPED.get(process, {}), **seen})
        found += _granted(values, process, rules, "lab", cluster=True)
    return found


def _granted(
    values: Values, process: str, rules: list[Document], purpose: str, *, cluster: bool
) -> list[Document]:
    """A role and its binding. Names of cluster roles include the installation."""
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
    """Reading one Namespace object, although Namespaces are cluster-scoped."""
    return {
        "apiGroups": [""],
        "resources": ["namespaces"],
        "resourceNames": [values.namespace],
        "verbs": list(LOOK),
    }
