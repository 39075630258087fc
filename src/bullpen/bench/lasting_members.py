"""A pool of lasting targets whose members are ready, written at once: for ``passes``.

The members have no disks: what is measured is the count, the leases and the template.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from bullpen.api.fields import Kind
from bullpen.api.kinds.exporter import Exporter, ExporterSpec
from bullpen.api.kinds.virtualtarget import VirtualTarget, VirtualTargetSpec
from bullpen.api.kinds.virtualtargetclass import VirtualTargetClass, VirtualTargetClassSpec
from bullpen.api.kinds.virtualtargetpool import (
    MemberMetadata,
    MemberTemplate,
    VirtualTargetPool,
    VirtualTargetPoolSpec,
    member_name,
)
from bullpen.api.meta import ObjectMeta, OwnerReference
from bullpen.api.objects import meta_of
from bullpen.api.scale_down import ScaleDownPolicy
from bullpen.bench.ready_exporter import NAMESPACE, POOL, ready
from bullpen.core.pools import lasting_pool
from bullpen.core.targets import lasting_targets, profiles, target_exporter
from bullpen.provisioners.base import Connection, InstanceSpec
from bullpen.provisioners.fake import NAME, FakeProvisioner
from bullpen.registry.objects import RegistryObjects

LABELS = {"board": POOL}


async def fill(
    objects: RegistryObjects, provisioner: FakeProvisioner, size: int, now: datetime
) -> None:
    meta = ObjectMeta(name=POOL, namespace=NAMESPACE)
    spec = VirtualTargetClassSpec(provisioner=NAME)
    cls = await objects.create(VirtualTargetClass(metadata=meta, spec=spec))
    member = VirtualTargetSpec(virtual_target_class_name=POOL)
    template = MemberTemplate(metadata=MemberMetadata(labels=LABELS), spec=member)
    wanted = VirtualTargetPoolSpec(
        replicas=size, scale_down_policy=ScaleDownPolicy.NEWEST_FIRST, template=template
    )
    pool = await objects.create(VirtualTargetPool(metadata=meta, spec=wanted))
    for number in range(size):
        target = await _target(objects, pool, cls, member_name(POOL, number), now)
        exporter = await _exporter(objects, target, now)
        identity = profiles.identity(target.metadata.uid)
        spec_ = InstanceSpec(
            key=(NAMESPACE, exporter.metadata.name),
            owner_uid=exporter.metadata.uid,
            profile=profiles.target_profile(target, cls, {}, identity),
            connection=Connection(endpoint="", token="", ca_pem=""),
        )
        await provisioner.ensure(spec_)


async def _target(
    objects: RegistryObjects,
    pool: VirtualTargetPool,
    cls: VirtualTargetClass,
    name: str,
    now: datetime,
) -> VirtualTarget:
    meta = ObjectMeta(
        name=name,
        namespace=NAMESPACE,
        labels=lasting_pool.member_labels(pool),
        finalizers=(lasting_targets.FINALIZER,),
        owner_references=(_owner(pool),),
    )
    spec = pool.spec.template.spec
    made = await objects.create(VirtualTarget(metadata=meta, spec=spec))
    revisions = profiles.target_profile(made, cls, {}, profiles.identity(made.metadata.uid))
    status = replace(
        made.status,
        written_revision=revisions.revision,
        effective_revision=revisions.revision,
        start_revision=revisions.start_revision,
        starts=1,
        started_at=now,
    )
    return await objects.update_status(replace(made, status=status))


async def _exporter(objects: RegistryObjects, target: VirtualTarget, now: datetime) -> Exporter:
    meta = ObjectMeta(
        name=target.metadata.name,
        namespace=NAMESPACE,
        labels=target_exporter.labels_of(target, {}),
        annotations=target_exporter.annotations_of(target, {profiles.PROVISIONER: NAME}),
        finalizers=(profiles.FINALIZER,),
        owner_references=(_owner(target),),
    )
    made = await objects.create(Exporter(metadata=meta, spec=ExporterSpec()))
    return await objects.update_status(ready(made, now))


def _owner(found: Kind) -> OwnerReference:
    meta = meta_of(found)
    return OwnerReference(
        api_version=found.api_version,
        kind=found.kind,
        name=meta.name,
        uid=meta.uid,
        controller=True,
        block_owner_deletion=True,
    )
