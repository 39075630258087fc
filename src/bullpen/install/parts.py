"""The parts of an installation, which of them are enabled, and the plain manifests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from bullpen.api.crds import crds
from bullpen.api.paths import Document
from bullpen.install import admission, network, rbac, workloads
from bullpen.install.values import Chosen, Values

Build = Callable[[Values], list[Document]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Objects that belong together: one file of the chart."""

    name: str
    build: Build
    when: tuple[str, ...] = ()
    """Conditions on values that must hold; an exclamation mark negates one, and one that begins
    with a dot is about the item."""

    each: str = ""
    """A list or number: the objects are created once for each item."""


PARTS = (
    Part(name="serviceaccounts", build=rbac.accounts),
    Part(name="roles-home", build=rbac.home_roles),
    Part(name="roles-lab", build=rbac.lab_roles, when=("!allNamespaces",)),
    Part(name="roles-cluster", build=rbac.cluster_roles, when=("allNamespaces",)),
    Part(name="admission-lab", build=admission.lab_policies, when=("!allNamespaces",)),
    Part(name="admission-cluster", build=admission.cluster_policies, when=("allNamespaces",)),
    Part(name="config", build=workloads.config),
    Part(name="controller", build=workloads.controller),
    Part(name="router", build=workloads.router),
    Part(name="dashboard", build=workloads.dashboard, when=("dashboard.enabled",)),
    Part(name="dashboard-service", build=network.dashboard_service, when=("dashboard.enabled",)),
    Part(
        name="dashboard-policy",
        build=network.dashboard_policy,
        when=("dashboard.enabled", "networkPolicies.enabled"),
    ),
    Part(
        name="dashboard-rights-lab",
        build=rbac.dashboard_in_lab,
        when=("dashboard.enabled", "!allNamespaces"),
    ),
    Part(
        name="dashboard-rights-cluster",
        build=rbac.dashboard_in_cluster,
        when=("dashboard.enabled", "allNamespaces"),
    ),
    Part(name="provisioners", build=workloads.provisioner, each="provisioners"),
    Part(name="provisioners-rights", build=rbac.provisioner, each="provisioners"),
    Part(
        name="provisioners-lab",
        build=rbac.provisioner_in_lab,
        when=("!allNamespaces",),
        each="provisioners",
    ),
    Part(
        name="provisioners-cluster",
        build=rbac.provisioner_in_cluster,
        when=("allNamespaces",),
        each="provisioners",
    ),
    Part(
        name="provisioners-pods-lab",
        build=rbac.pods_in_lab,
        when=("!allNamespaces", ".pods"),
        each="provisioners",
    ),
    Part(
        name="provisioners-pods-cluster",
        build=rbac.pods_in_cluster,
        when=("allNamespaces", ".pods"),
        each="provisioners",
    ),
    Part(name="services", build=network.services),
    Part(name="apiservice", build=network.api_service, when=("apiService.enabled",)),
    Part(name="apiservice-rights", build=rbac.removal_rights, when=("apiService.enabled",)),
    Part(
        name="services-replicas",
        build=network.replica_services,
        when=("router.replicaServices.enabled",),
        each="router.replicas",
    ),
    Part(name="networkpolicies", build=network.policies, when=("networkPolicies.enabled",)),
    Part(name="budgets", build=network.budgets, when=("podDisruptionBudgets.enabled",)),
    Part(
        name="certificates-own",
        build=network.own_issuer,
        when=("certManager.enabled", "!certManager.issuerRef"),
    ),
    Part(
        name="certificates",
        build=network.given_issuer,
        when=("certManager.enabled", "certManager.issuerRef"),
    ),
    Part(name="servicemonitor", build=network.monitor, when=("serviceMonitor.enabled",)),
)


def manifests(given: Mapping[str, object], *, namespace: str) -> Iterator[Document]:
    """Everything to apply, in a working order. Raises ``BadRequest`` for unknown values."""
    values = Chosen(given, namespace=namespace)
    yield from crds()
    yield _namespace(namespace)
    yield from installed(values)


def installed(values: Chosen) -> Iterator[Document]:
    """What the chart installs."""
    for part in PARTS:
        if all(values.holds(condition) for condition in part.when if not of_item(condition)):
            for below in values.below(part.each) if part.each else (values,):
                if all(below.holds(condition) for condition in part.when if of_item(condition)):
                    yield from part.build(below)


def of_item(condition: str) -> bool:
    """Whether a condition is about an item, not about the whole installation."""
    return condition.removeprefix("!").startswith(".")


def _namespace(name: str) -> Document:
    """All our Pods satisfy the strictest Pod Security Standard of Kubernetes."""
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
