"""RBAC of the installation: each process gets exactly the rights it uses, and no more.

A test records the requests of the processes to the API server and compares.
"""

from __future__ import annotations

from collections.abc import Mapping

from bullpen.api.kinds.virtualtargetpool import VirtualTargetPool
from bullpen.api.paths import Document
from bullpen.api.resources import RESOURCES
from bullpen.apiserver.routes import SCALE_DOWN_WITH, SUBRESOURCES
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
        (DEVICE, "deviceclaims"): (*READ, "create", "update", "delete"),
        (DEVICE, "deviceclaims/status"): ("update",),
        (DEVICE, "devicepools"): READ,
        (DEVICE, "devicepools/status"): ("update",),
        (VIRTUAL, "providerconfigs"): LOOK,
        (JUMPSTARTER, "leases"): (*READ, "create", "update", "delete"),
        (JUMPSTARTER, "leases/status"): ("update",),
        # Removals by name.
        (VIRTUAL, "exportersets"): (*READ, "update"),
        (VIRTUAL, "virtualtargets"): READ,
        (VIRTUAL, "virtualtargetpools"): (*READ, "update"),
        ("", "configmaps"): (*LOOK, "create", "patch"),
        ("", "secrets"): (*LOOK, "create", "update"),
    },
    "provisioner": {
        **_SEEN,
        **EVENTS,
        (JUMPSTARTER, "exporters"): (*READ, "create", "update", "delete"),
        # Admission on some clusters requires this right to set blockOwnerDeletion.
        (JUMPSTARTER, "exporters/finalizers"): ("update",),
        # A lessee is told that a provider is about to end its target.
        (JUMPSTARTER, "leases/status"): ("update",),
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
        ("", "secrets"): (*READ, "create", "patch", "update"),
    },
    "router": {
        **EVENTS,
        (JUMPSTARTER, "leases"): READ,
        (JUMPSTARTER, "leases/status"): ("update",),
    },
}
"""Rights in the namespaces of labs, by process."""

PODS: Grants = {
    ("", "pods"): (*READ, "create", "update", "delete"),
    ("", "persistentvolumeclaims"): ("get", "create", "update", "delete"),
}
"""Rights of provisioners whose targets are Pods, besides those of all provisioners: their
instances, and the volumes of lasting disks."""

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

CLUSTER_SCOPED: dict[str, Grants] = {
    "controller": {
        (DEVICE, "deviceclasses"): LOOK,
        # Whether a caller of the external scaler may see a pool.
        ("authorization.k8s.io", "subjectaccessreviews"): ("create",),
    }
}
"""Rights to kinds without a namespace."""

DASHBOARD: Grants = {
    (JUMPSTARTER, "clients"): LOOK,
    (JUMPSTARTER, "exporters"): LOOK,
    # Ended leases are read one by one.
    (JUMPSTARTER, "leases"): READ,
    (DEVICE, "deviceclaims"): LOOK,
    (VIRTUAL, "exportersets"): LOOK,
    (VIRTUAL, "providerconfigs"): LOOK,
    (VIRTUAL, "virtualtargetpools"): LOOK,
}
"""Rights of the dashboard in the namespaces of labs. It writes nothing and reads no Secret:
people act with their own tokens."""

DASHBOARD_CLUSTER_SCOPED: Grants = {
    (DEVICE, "deviceclasses"): LOOK,
    # Who a person is, and what they may do.
    ("authentication.k8s.io", "tokenreviews"): ("create",),
    ("authorization.k8s.io", "subjectaccessreviews"): ("create",),
}
"""Rights of the dashboard to kinds without a namespace."""

PROCESSES = tuple(LAB)
SEE_NAMESPACES = ("controller", "provisioner")


MANY = "provisioner"
"""The process of which there are several, each with an account of its own."""


def accounts(values: Values) -> list[Document]:
    """A service account for each process, and one without any rights for targets."""
    single = (process for process in PROCESSES if process != MANY)
    return [_account(values, process, process) for process in (*single, "target")]


def _account(values: Values, name: str, process: str) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": label(values, name_of(name), process),
        "automountServiceAccountToken": False,
        "imagePullSecrets": values.get("imagePullSecrets"),
    }


def provisioner(values: Values) -> list[Document]:
    """The account of one provisioner, with the rights of all in the installation's namespace."""
    return [_account(values, _own(values), MANY), _binding(values, "home", cluster=False)]


def provisioner_in_lab(values: Values) -> list[Document]:
    return [
        _binding(values, "lab", cluster=False),
        _binding(values, "namespace", cluster=True),
    ]


def provisioner_in_cluster(values: Values) -> list[Document]:
    return [_binding(values, "lab", cluster=True)]


def pods_in_lab(values: Values) -> list[Document]:
    """For a provisioner whose targets are Pods."""
    return [_binding(values, "pods", cluster=False)]


def pods_in_cluster(values: Values) -> list[Document]:
    return [_binding(values, "pods", cluster=True)]


def dashboard_in_lab(values: Values) -> list[Document]:
    return [
        _account(values, "dashboard", "dashboard"),
        *_granted(values, "dashboard", _rules(DASHBOARD), "lab", cluster=False),
        *_granted(values, "dashboard", _rules(DASHBOARD_CLUSTER_SCOPED), "people", cluster=True),
    ]


def dashboard_in_cluster(values: Values) -> list[Document]:
    rules = _rules({**DASHBOARD, **DASHBOARD_CLUSTER_SCOPED})
    return [
        _account(values, "dashboard", "dashboard"),
        *_granted(values, "dashboard", rules, "lab", cluster=True),
    ]


def _own(values: Values) -> str:
    return f"{MANY}-{values.get('.name')}"


def _binding(values: Values, purpose: str, *, cluster: bool) -> Document:
    """Gives one provisioner the role that all of them share."""
    role = _role_name(values, MANY, purpose, cluster=cluster)
    name = _role_name(values, _own(values), purpose, cluster=cluster)
    return _bound(values, role, name, MANY, account=_own(values), cluster=cluster)


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
    return [*found, *_granted(values, MANY, _rules(PODS), "pods", cluster=False)]


def cluster_roles(values: Values) -> list[Document]:
    """If every namespace may hold a lab."""
    found: list[Document] = []
    for process in PROCESSES:
        seen = {("", "namespaces"): LOOK} if process in SEE_NAMESPACES else {}
        rules = _rules({**LAB[process], **CLUSTER_SCOPED.get(process, {}), **seen})
        found += _granted(values, process, rules, "lab", cluster=True)
    return [*found, *_granted(values, MANY, _rules(PODS), "pods", cluster=True)]


def removal_rights(values: Values) -> list[Document]:
    """What removal by name needs: of the controller, and of people who may edit pools."""
    prefix = f"{values.namespace}-{name_of('controller')}"
    group = f"{SUBRESOURCES}{VIRTUAL}"
    resource = RESOURCES.of(VirtualTargetPool)
    own = {
        "apiGroups": ["apiregistration.k8s.io"],
        "resources": ["apiservices"],
        "resourceNames": [f"{resource.version}.{group}"],
        "verbs": ["get", "patch"],
    }
    tokens = {
        "apiGroups": ["authentication.k8s.io"],
        "resources": ["tokenreviews"],
        "verbs": ["create"],
    }
    pools = [found.plural for found in RESOURCES if found.named_removal]
    people = {
        "apiGroups": [group],
        "resources": sorted(f"{plural}/{SCALE_DOWN_WITH}" for plural in pools),
        "verbs": ["create"],
    }
    # Published by the cluster for every API server behind an APIService.
    proxy = _bound(
        values,
        "extension-apiserver-authentication-reader",
        f"{prefix}-proxy",
        "controller",
        account="controller",
        cluster=False,
    )
    proxy["metadata"]["namespace"] = "kube-system"
    edit = label(values, f"{values.namespace}-{name_of('pools')}-edit", "controller")
    del edit["namespace"]
    edit["labels"] |= {
        f"rbac.authorization.k8s.io/aggregate-to-{role}": "true" for role in ("admin", "edit")
    }
    return [
        *_granted(values, "controller", [own, tokens], "api", cluster=True),
        proxy,
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": edit,
            "rules": [people],
        },
    ]


def _granted(
    values: Values, process: str, rules: list[Document], purpose: str, *, cluster: bool
) -> list[Document]:
    """A role, and its binding unless each of several processes has one."""
    name = _role_name(values, process, purpose, cluster=cluster)
    role: Document = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole" if cluster else "Role",
        "metadata": label(values, name, process, namespaced=not cluster),
        "rules": rules,
    }
    if process == MANY:
        return [role]
    return [role, _bound(values, name, name, process, account=process, cluster=cluster)]


def _role_name(values: Values, process: str, purpose: str, *, cluster: bool) -> str:
    """Names of cluster roles include the installation."""
    name = f"{name_of(process)}-{purpose}"
    return f"{values.namespace}-{name}" if cluster else name


def _bound(
    values: Values, role: str, name: str, process: str, *, account: str, cluster: bool
) -> Document:
    kind = "ClusterRole" if cluster else "Role"
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": f"{kind}Binding",
        "metadata": label(values, name, process, namespaced=not cluster),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [
            {
                "kind": "ServiceAccount",
                "name": name_of(account),
                "namespace": values.namespace,
            }
        ],
    }


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
