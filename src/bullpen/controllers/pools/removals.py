"""The record of removals by name in the spec of a pool: dropped once the members are gone."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from bullpen.api.fields import Kind
from bullpen.api.kinds.exporterset import ExporterSet
from bullpen.api.kinds.virtualtargetpool import VirtualTargetPool
from bullpen.api.objects import Objects, meta_of
from bullpen.controllers.object_edit import change
from bullpen.errors import NotFound
from bullpen.runtime.informer import Informer

P = TypeVar("P", ExporterSet, VirtualTargetPool)
M = TypeVar("M", bound=Kind)

FORGOTTEN_AT_ONCE_MAX = 100
"""Records that one pass drops; its own write starts the next one."""


async def forget_removals(
    objects: Objects,
    pools: Informer[P],
    members: Informer[M],
    kind: type[M],
    pool: P,
    gone: Sequence[str],
) -> None:
    """Drop the records of the members with the uids ``gone``, which the view no longer has.

    The API is asked as well: if the view lagged behind, a member would stay that the count no
    longer includes, and another one be removed in its place.
    """
    records = [each for each in pool.spec.removals if each.uid in gone][:FORGOTTEN_AT_ONCE_MAX]
    dropped = set()
    for record in records:
        try:
            found = await objects.get(kind, pool.metadata.namespace, record.name)
        except NotFound:
            dropped.add(record.uid)
            continue
        members.observe(found)
        if meta_of(found).uid != record.uid:
            dropped.add(record.uid)

    def edit(newest: P) -> P:
        kept = tuple(each for each in newest.spec.removals if each.uid not in dropped)
        return replace(newest, spec=replace(newest.spec, removals=kept))

    if dropped:
        with contextlib.suppress(NotFound):  # the pool itself is gone
            await change(objects, pools, pool, edit)
