"""The durable record of what may exist elsewhere: finalizers, hosts and keys of machines."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from bullpen.api.kinds.core import Secret
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.providerconfig import ProviderConfig
from bullpen.api.kinds.virtualtargetclass import VirtualTargetClass
from bullpen.api.meta import ObjectMeta, OwnerReference
from bullpen.api.objects import Objects
from bullpen.core.targets import hosts, provider_status
from bullpen.core.targets.hosts import Placed
from bullpen.core.targets.profiles import PROVISIONER
from bullpen.core.targets.provider_status import PLACE
from bullpen.errors import (
    AlreadyExists,
    Conflict,
    NotFound,
    Refused,
    Unavailable,
    Unreachable,
)
from bullpen.provisioners.provider import MachineKeys

Key = tuple[str, str]
Recorded = TypeVar("Recorded", ProviderConfig, Secret, VirtualTargetClass)

ATTEMPTS_MAX = 5
"""Conflicting writes of one object before giving up; the caller tries again later."""

ORDERED_AT = "virtualtarget.jumpstarter.dev/provider"
"""Annotation of the keys of a machine: the ProviderConfig where it was ordered."""

UID_LENGTH = 8
"""So much of an Exporter's uid is in the name of its machine's keys."""


class ProviderRecords:
    """Writes and erases records. The objects are read at each write: no cache can be stale."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._locks: dict[str, asyncio.Lock] = {}
        """By namespace: the ProviderConfigs of one may share a Secret."""

    async def begin(self, backend: Key, place: str = "") -> None:
        """Record a backend and its place, then its Secret: nothing can be deleted without it."""
        async with self._lock(backend):
            config = await self._config(backend)
            known = config.metadata.annotations.get(PLACE, place)
            if known != place and provider_status.on_record(config.metadata):
                raise Unreachable(f"ProviderConfig {backend[1]} has just changed; try again")
            if not await self._mark(ProviderConfig, backend, kept=True, place=place):
                raise Refused(f"ProviderConfig {backend[1]} does not exist")
            reference = config.spec.credentials_secret_ref
            if reference is not None:
                await self._mark(Secret, (backend[0], reference.name), kept=True)

    async def end(self, backend: Key, is_empty: Callable[[], bool]) -> bool:
        """Erase the record if the backend is still empty; whether it was erased."""
        async with self._lock(backend):
            if not is_empty():
                return False
            try:
                config = await self._objects.get(ProviderConfig, *backend)
            except NotFound:
                return True
            await self._mark(ProviderConfig, backend, kept=False)
            reference = config.spec.credentials_secret_ref
            if reference is not None:
                await self._let_go(backend[0], reference.name)
            return True

    async def release(self, secret: Key) -> None:
        """Let a Secret go, unless a ProviderConfig on record needs it."""
        async with self._lock(secret):
            await self._let_go(*secret)

    async def _let_go(self, namespace: str, secret: str) -> None:
        found = (await self._objects.list(ProviderConfig)).items
        others = (config for config in found if config.metadata.namespace == namespace)
        if secret not in provider_status.needed_secrets(others):
            await self._mark(Secret, (namespace, secret), kept=False)

    async def mark_class(self, key: Key, *, kept: bool) -> None:
        """Keep a class, or let it go."""
        await self._mark(VirtualTargetClass, key, kept=kept)

    async def keep_keys(self, key: Key, uid: str, made: MachineKeys) -> MachineKeys:
        """The keys of an Exporter's machine: those on record, else ``made``, which then are."""
        kept = await self.kept_keys(key, uid)
        if kept is not None:
            return kept
        try:
            owner = await self._objects.get(Exporter, *key)
        except NotFound:
            raise Refused(f"Exporter {key[1]} was deleted") from None
        if owner.metadata.uid != uid:
            raise Refused(f"Exporter {key[1]} was deleted")
        try:
            await self._objects.create(_keys_secret(owner, made))
        except AlreadyExists:
            raise Unavailable(f"the keys of Exporter {key[1]} were just made; try again") from None
        return made

    async def move_keys(self, key: Key, uid: str, backend: str) -> None:
        """Record that its machine is created at another backend."""
        try:
            found = await self._objects.get(Secret, key[0], keys_name(key[1], uid))
            meta = found.metadata
            moved = replace(meta, annotations={**meta.annotations, ORDERED_AT: backend})
            await self._objects.update(replace(found, metadata=moved))
        except (NotFound, Conflict):
            raise Unavailable(f"the keys of Exporter {key[1]} have changed; try again") from None

    async def kept_keys(self, key: Key, uid: str) -> MachineKeys | None:
        """What is on record for an Exporter; None if nothing is."""
        try:
            found = await self._objects.get(Secret, key[0], keys_name(key[1], uid))
        except NotFound:
            return None
        keys = {name: base64.b64decode(value) for name, value in found.data.items()}
        return MachineKeys(keys=keys, backend=found.metadata.annotations.get(ORDERED_AT, ""))

    async def place(self, key: Key, on_record: Placed) -> None:
        """Record which host is asked to run the instance of an Exporter."""
        text = hosts.record(on_record.config, on_record.host)
        for _ in range(ATTEMPTS_MAX):
            try:
                found = await self._objects.get(Exporter, *key)
                meta = found.metadata
                if meta.uid != on_record.uid:
                    raise Refused(f"Exporter {key[1]} was deleted")
                if meta.annotations.get(hosts.RECORD) != text:
                    annotations = {**meta.annotations, hosts.RECORD: text}
                    meta = replace(meta, annotations=annotations)
                    await self._objects.update(replace(found, metadata=meta))
            except NotFound:
                raise Refused(f"Exporter {key[1]} was deleted") from None
            except Conflict:
                continue
            return
        raise Unavailable(f"Exporter {key[1]} changed {ATTEMPTS_MAX} times; try again")

    async def placed(self, key: Key) -> Placed | None:
        """What is on record for an Exporter; None if nothing is."""
        try:
            meta = (await self._objects.get(Exporter, *key)).metadata
        except NotFound:
            return None
        return hosts.placed(meta.uid, meta.annotations)

    async def all_placed(self, provisioner: str) -> dict[Key, Placed]:
        """What is on record for all Exporters of a provisioner."""
        found = {}
        for exporter in (await self._objects.list(Exporter)).items:
            meta = exporter.metadata
            on_record = hosts.placed(meta.uid, meta.annotations)
            if on_record is not None and meta.annotations.get(PROVISIONER) == provisioner:
                found[meta.namespace, meta.name] = on_record
        return found

    async def _config(self, backend: Key) -> ProviderConfig:
        try:
            found = await self._objects.get(ProviderConfig, *backend)
        except NotFound:
            raise Refused(f"ProviderConfig {backend[1]} does not exist") from None
        if found.metadata.deletion_timestamp is not None:
            raise Refused(f"ProviderConfig {backend[1]} is being deleted")
        return found

    async def _mark(self, kind: type[Recorded], key: Key, *, kept: bool, place: str = "") -> bool:
        """Set or remove the finalizer of one object; False if there is no such object."""
        for _ in range(ATTEMPTS_MAX):
            try:
                found = await self._objects.get(kind, *key)
                meta = provider_status.recorded(found.metadata, kept=kept, place=place)
                if meta != found.metadata:
                    await self._objects.update(replace(found, metadata=meta))
            except NotFound:
                return False
            except Conflict:
                continue
            return True
        raise Unavailable(f"{kind.kind} {key[1]} changed {ATTEMPTS_MAX} times; try again")

    def _lock(self, key: Key) -> asyncio.Lock:
        return self._locks.setdefault(key[0], asyncio.Lock())


def keys_name(exporter: str, uid: str) -> str:
    """The Secret with the keys of an Exporter's machine; a later one of its name has another."""
    return f"{exporter}-machine-{uid[:UID_LENGTH]}"


def _keys_secret(exporter: Exporter, made: MachineKeys) -> Secret:
    """It is deleted with the Exporter."""
    meta = exporter.metadata
    owner = OwnerReference(
        api_version=exporter.api_version,
        kind=exporter.kind,
        name=meta.name,
        uid=meta.uid,
        controller=True,
        block_owner_deletion=True,
    )
    return Secret(
        metadata=ObjectMeta(
            name=keys_name(meta.name, meta.uid),
            namespace=meta.namespace,
            annotations={ORDERED_AT: made.backend},
            owner_references=(owner,),
        ),
        type="Opaque",
        data={name: base64.b64encode(value).decode() for name, value in made.keys.items()},
    )
