"""The controllers of the lab, listed once.

A new controller is one function here and its place in a list. Every process, the simulator,
the benchmarks and the tests choose from these lists.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bullpen.api.fields import Kind
from bullpen.api.kinds.client import Client
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.exporterset import ExporterSet
from bullpen.api.kinds.lease import Lease
from bullpen.api.kinds.providerconfig import ProviderConfig
from bullpen.api.kinds.rbac import ClusterRole
from bullpen.api.kinds.virtualdisk import VirtualDisk
from bullpen.api.kinds.virtualtarget import VirtualTarget
from bullpen.api.kinds.virtualtargetpool import VirtualTargetPool
from bullpen.app.lab import Lab, MakeController, Role
from bullpen.controllers import authority
from bullpen.controllers.authority import AuthorityReconciler
from bullpen.controllers.claims.claim_labs import watch_claims
from bullpen.controllers.claims.claim_reconciler import ClaimReconciler
from bullpen.controllers.exporters.credentials import Holder, watch_holders
from bullpen.controllers.exporters.presence_reconciler import PresenceReconciler
from bullpen.controllers.faults import FaultReconciler
from bullpen.controllers.leases.lease_reconciler import LeaseReconciler, watch_namespaces
from bullpen.controllers.leases.lease_retention import LeaseRetentionReconciler
from bullpen.controllers.pools.lasting_index import LastingIndex
from bullpen.controllers.pools.lasting_pool_reconciler import (
    LastingPoolReconciler,
    watch_lasting_pools,
)
from bullpen.controllers.pools.pool_triggers import watch_pools
from bullpen.controllers.rbac.clusterroles import ClusterRoleAggregator, watch_cluster_roles
from bullpen.controllers.targets import (
    disk_reconciler,
    instance_reconciler,
    provider_reconciler,
    target_reconciler,
)
from bullpen.controllers.targets.class_reconciler import ClassReconciler, watch_classes
from bullpen.controllers.targets.disk_reconciler import DiskReconciler, watch_disks
from bullpen.controllers.targets.instance_reconciler import InstanceReconciler, watch_members
from bullpen.controllers.targets.instance_view import InstanceViewReconciler, watch_provisioners
from bullpen.controllers.targets.provider_reconciler import ProviderReconciler, watch_providers
from bullpen.controllers.targets.target_reconciler import TargetReconciler, watch_targets
from bullpen.runtime.controller import Controller, every_change
from bullpen.runtime.faults import ObjectKey
from bullpen.runtime.informer import Key
from bullpen.runtime.loop import Lanes

WORKERS = 32
"""Concurrent passes for bursts of thousands of objects: separate writes in few commits."""

WEBHOOK_WORKERS = 16
"""Each webhook has one pass at a time; a slow one delays no other."""

_FAULT_KINDS: dict[Role, tuple[type[Kind], ...] | None] = {
    Role.WHOLE: None,
    Role.LEASES: (Client, Exporter, Lease),
    Role.POOLS: (ExporterSet,),
}
"""Kinds that a process may read and write, and so report faults on; None for all."""


def faults(lab: Lab) -> Controller[ObjectKey]:
    """Reports objects that could not be processed."""
    found = lab.views.faults
    return Controller(
        reconciler=FaultReconciler(
            lab.objects, found, clock=lab.clock, events=lab.events, kinds=_FAULT_KINDS[lab.role]
        ),
        watches=(found.listen,),
    )


def credentials(lab: Lab) -> Controller[Holder]:
    """Gives every client and exporter its token."""
    return Controller(
        reconciler=lab.credentials,
        watches=(partial(watch_holders, lab.views),),
        workers=WORKERS,
    )


def authority_certificates(lab: Lab) -> Controller[str]:
    """Publishes the CA certificate in namespaces."""
    return Controller(
        reconciler=AuthorityReconciler(
            lab.objects, lab.views, ca_pem=lab.settings.ca_pem, home=lab.settings.authority_home
        ),
        watches=(partial(authority.watch_namespaces, lab.views),),
    )


def target_classes(lab: Lab) -> Controller[Key]:
    """Reports on VirtualTargetClasses."""
    return Controller(
        reconciler=ClassReconciler(
            lab.objects, lab.views.classes, sandboxing=lab.sandboxing, clock=lab.clock
        ),
        watches=(partial(watch_classes, lab.views.classes),),
    )


def exporters(lab: Lab) -> Controller[Key]:
    """Reports which exporters are connected."""
    return Controller(
        reconciler=PresenceReconciler(
            lab.objects,
            lab.views,
            lab.connections,
            lab.reports,
            clock=lab.clock,
            events=lab.events,
            stuck_after=lab.settings.stuck_after,
        ),
        watches=(every_change(lab.views.exporters), lab.presence_changed.listen),
        workers=WORKERS,
        subject=lambda key: lab.views.exporters.get(*key),
    )


def leases(lab: Lab) -> Controller[str]:
    """Assigns exporters to leases and ends leases, one namespace at a time."""

    def presence(add: Callable[[str], None]) -> None:
        lab.presence_changed.listen(lambda key: add(key[0]))

    return Controller(
        reconciler=LeaseReconciler(
            lab.objects,
            lab.views,
            lab.labs,
            clock=lab.clock,
            events=lab.events,
            supplies=lab.supplies,
        ),
        watches=(
            partial(watch_namespaces, lab.views, lab.labs),
            lab.supply_changed.listen,
            lab.reservations_changed.listen,
            presence,
        ),
        subject=lambda namespace: lab.views.namespaces.get("", namespace),
    )


def lease_retention(lab: Lab) -> Controller[str]:
    """Deletes ended leases whose retention is over."""

    def from_the_start(add: Callable[[str], None]) -> None:
        add("")

    return Controller(
        reconciler=LeaseRetentionReconciler(
            lab.objects, lab.views, lab.labs, retention=lab.settings.retention, clock=lab.clock
        ),
        watches=(from_the_start,),
    )


def claims(lab: Lab) -> Controller[str]:
    """Turns claims into leases, one namespace at a time."""
    return Controller(
        reconciler=ClaimReconciler(
            lab.objects,
            lab.views,
            lab.labs,
            quotas=lab.settings.quotas,
            preemption=lab.settings.preemption,
            retention=lab.settings.retention,
            clock=lab.clock,
            events=lab.events,
            leases_due=lab.reservations_changed,
            supplies=lab.claim_supplies,
        ),
        watches=(
            partial(
                watch_claims,
                lab.views,
                lab.labs,
                lab.presence_changed.listen,
                lab.supply_changed.listen,
            ),
        ),
        subject=lambda namespace: lab.views.namespaces.get("", namespace),
    )


def webhooks(lab: Lab) -> Controller[str]:
    """Tells webhooks what happens to leases and exporters."""
    return Controller(
        reconciler=lab.webhooks, watches=(lab.webhooks.watch,), workers=WEBHOOK_WORKERS
    )


def provisioners(lab: Lab) -> Controller[str]:
    """Lists the instances of each provisioner."""
    return Controller(
        reconciler=InstanceViewReconciler(lab.instance_view, clock=lab.clock),
        watches=(partial(watch_provisioners, lab.instance_view),),
    )


def provider_configs(lab: Lab) -> Controller[Key]:
    """Lists the backends of providers, and keeps the record of those in use."""
    return Controller(
        reconciler=ProviderReconciler(
            lab.objects,
            lab.views,
            lab.backed,
            identity=lab.settings.identity,
            clock=lab.clock,
            chance=lab.chance,
        ),
        watches=(partial(watch_providers, lab.views, lab.backed),),
        workers=provider_reconciler.WORKERS,
        subject=lambda key: lab.views[ProviderConfig].get(*key),
    )


def exporter_sets(lab: Lab) -> Controller[Key]:
    """Keeps pools at their size."""
    return Controller(
        reconciler=lab.exporter_sets,
        watches=(
            partial(watch_pools, lab.views, lab.labs, lab.instance_view, lab.pool_observer.demand),
        ),
        subject=lambda key: lab.views.sets.get(*key),
    )


def instances(lab: Lab) -> Controller[Key]:
    """Starts and removes the instances of members of pools."""
    return Controller(
        reconciler=InstanceReconciler(
            lab.objects,
            lab.views,
            lab.instance_view,
            lab.blueprints,
            clock=lab.clock,
            events=lab.events,
            chance=lab.chance,
        ),
        watches=(
            partial(watch_members, lab.views, lab.instance_view),
            lab.member_changed.listen,
        ),
        # Starting and removing instances waits for backends; a slow member delays no other.
        workers=instance_reconciler.WORKERS,
        lanes=Lanes(
            of=partial(instance_reconciler.lane, lab.views),
            passes_max=instance_reconciler.LANE_MAX,
        ),
        subject=lambda key: lab.views.exporters.get(*key),
    )


def virtual_disks(lab: Lab) -> Controller[Key]:
    """Stores lasting disks."""
    return Controller(
        reconciler=DiskReconciler(
            lab.objects,
            lab.views,
            lab.disk_users,
            lab.disk_storage,
            clock=lab.clock,
            events=lab.events,
        ),
        watches=(partial(watch_disks, lab.views, lab.disk_users),),
        workers=disk_reconciler.WORKERS,
        subject=lambda key: lab.views[VirtualDisk].get(*key),
    )


def virtual_targets(lab: Lab) -> Controller[Key]:
    """Starts and stops lasting targets."""
    return Controller(
        reconciler=TargetReconciler(
            lab.objects,
            lab.views,
            lab.instance_view,
            lab.blueprints,
            lab.disk_users,
            clock=lab.clock,
            events=lab.events,
        ),
        watches=(partial(watch_targets, lab.views, lab.instance_view, lab.disk_users),),
        workers=target_reconciler.WORKERS,
        subject=lambda key: lab.views[VirtualTarget].get(*key),
    )


def virtual_target_pools(lab: Lab) -> Controller[Key]:
    """Keeps pools of lasting targets at their count."""
    index = LastingIndex(lab.views)
    return Controller(
        reconciler=LastingPoolReconciler(
            lab.objects,
            lab.views,
            index,
            clock=lab.clock,
            events=lab.events,
            chance=lab.chance,
        ),
        watches=(partial(watch_lasting_pools, lab.views, index),),
        subject=lambda key: lab.views[VirtualTargetPool].get(*key),
    )


def cluster_roles(lab: Lab) -> Controller[str]:
    """Fills the rules of aggregated ClusterRoles, where the API server is our own."""
    roles = lab.views[ClusterRole]
    return Controller(
        reconciler=ClusterRoleAggregator(lab.objects, roles),
        watches=(partial(watch_cluster_roles, roles),),
    )


LEASES: tuple[MakeController, ...] = (
    faults,
    credentials,
    authority_certificates,
    target_classes,
    exporters,
    leases,
    lease_retention,
    claims,
    webhooks,
)
"""The controllers of ``bullpen controller``."""

POOLS: tuple[MakeController, ...] = (
    faults,
    provisioners,
    provider_configs,
    exporter_sets,
    instances,
    virtual_disks,
    virtual_targets,
    virtual_target_pools,
)
"""The controllers of ``bullpen provisioner``."""

POOLS_WITHOUT_DISKS = tuple(made for made in POOLS if made is not virtual_disks)
"""The same, where its targets cannot have lasting disks."""

WHOLE: tuple[MakeController, ...] = tuple(dict.fromkeys((*LEASES, *POOLS)))
"""The controllers of a lab in one process, with the API server of its own or another."""

EMBEDDED: tuple[MakeController, ...] = (*WHOLE, cluster_roles)
"""The controllers of ``bullpen up``, which serves the API too."""
