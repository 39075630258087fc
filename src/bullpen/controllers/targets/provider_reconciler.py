"""Lists the backend of every ProviderConfig, keeps its record, and reports on it.

The only place that lists backends: provisioners answer from these listings.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial

from bullpen.api.kinds.providerconfig import ProviderConfig
from bullpen.api.kinds.virtualtargetclass import VirtualTargetClass
from bullpen.api.objects import Objects
from bullpen.controllers.object_edit import change_status
from bullpen.controllers.views import Views
from bullpen.core.targets import provider_status
from bullpen.core.targets.backends import Listing
from bullpen.core.targets.provider_status import ProviderView
from bullpen.errors import NotFound, Refused, Unavailable
from bullpen.kit.clock import Backoff, Clock
from bullpen.provisioners.base import BackedProvisioner
from bullpen.provisioners.provider import Backend
from bullpen.runtime.informer import Key, key_of
from bullpen.runtime.loop import Outcome

WORKERS = 8
"""Backends listed at the same time; a slow one delays no other."""

RETRY = Backoff(first=timedelta(seconds=2), cap=timedelta(minutes=1))
"""Between calls of a backend that does not answer."""


class ProviderReconciler:
    """Reconciles one ProviderConfig."""

    name = "providerconfigs"

    def __init__(
        self,
        objects: Objects,
        views: Views,
        provisioners: Mapping[str, BackedProvisioner],
        *,
        identity: str,
        clock: Clock,
        chance: random.Random,
    ) -> None:
        """``identity``: of the home of the objects, where the uids in it are not enough."""
        self._identity = identity
        self._objects = objects
        self._views = views
        self._configs = views[ProviderConfig]
        self._provisioners = provisioners
        self._clock = clock
        self._chance = chance
        self._failures: dict[Key, int] = {}
        self._settled: dict[Key, int] = {}
        """The generation of each ProviderConfig whose former Secret was let go."""

    async def reconcile(self, key: Key) -> Outcome:
        for provisioner in self._provisioners.values():
            provisioner.use(self._backends(provisioner.name))
        config = self._configs.get(*key)
        if config is None:
            self._failures.pop(key, None)
            self._settled.pop(key, None)
            return Outcome()
        found = self._provisioners.get(provider_status.in_effect(config).provisioner)
        if found is None:
            return Outcome()
        listing = await self._listed(found, key)
        if listing.error:
            wait = RETRY.delay(self._failures[key], self._chance)
        else:
            wait = provider_status.next_listing(listing)
            await self._keep_record(found, key, listing)
        await self._report(key, listing)
        return Outcome(wake_at=self._clock.now() + wait)

    async def _listed(self, provisioner: BackedProvisioner, key: Key) -> Listing:
        try:
            listing = await provisioner.refresh(key)
        except (Unavailable, Refused):
            self._failures[key] = self._failures.get(key, 0) + 1
            return provisioner.listing(key)
        self._failures.pop(key, None)
        return listing

    async def _keep_record(
        self, provisioner: BackedProvisioner, key: Key, listing: Listing
    ) -> None:
        """Erase the record of an empty backend; keep the classes of any other."""
        config = self._configs.get(*key)
        recorded = config is not None and provider_status.on_record(config.metadata)
        if recorded and provisioner.is_empty(key):
            recorded = not await provisioner.records.end(key, partial(provisioner.is_empty, key))
        if config is not None and self._settled.get(key) != config.metadata.generation:
            await self._release_secrets(provisioner, key[0])
            self._settled[key] = config.metadata.generation
        for found in self._classes(key):
            if provider_status.on_record(found.metadata) != recorded:
                await provisioner.records.mark_class(key_of(found), kept=recorded)

    async def _release_secrets(self, provisioner: BackedProvisioner, namespace: str) -> None:
        """Let go of the Secrets that ProviderConfigs have named before."""
        needed = provider_status.needed_secrets(self._configs.all(namespace))
        for secret in self._views.secrets.all(namespace):
            name = secret.metadata.name
            if provider_status.on_record(secret.metadata) and name not in needed:
                await provisioner.records.release((namespace, name))

    async def _report(self, key: Key, listing: Listing) -> None:
        config = self._configs.get(*key)
        if config is None:
            return

        named = (self._views.exporters.get(*machine.key) for machine in listing.machines)
        owners = {key_of(found): found.metadata.uid for found in named if found is not None}

        def status(newest: ProviderConfig) -> object:
            seen = ProviderView(config=newest, listing=listing, owners=owners)
            return provider_status.status(seen, now=self._clock.now())

        try:
            await change_status(self._objects, self._configs, config, status)
        except NotFound:
            return

    def _classes(self, backend: Key) -> tuple[VirtualTargetClass, ...]:
        return tuple(
            found
            for found in self._views.classes.all(backend[0])
            if (reference := found.spec.provider_config_ref) is not None
            and reference.name == backend[1]
        )

    def _backends(self, provisioner: str) -> list[Backend]:
        return [
            self._backend(config)
            for config in self._configs.all()
            if provider_status.in_effect(config).provisioner == provisioner
        ]

    def _backend(self, config: ProviderConfig) -> Backend:
        key = key_of(config)
        namespace = self._views.namespaces.get("", key[0])
        lab = provider_status.lab(self._identity, namespace.metadata.uid if namespace else "")
        return backend_of(config, lab=lab, credentials=partial(self._credentials, key))

    def _credentials(self, key: Key) -> Mapping[str, bytes]:
        """The data of the Secret as it is now, so that a rotation takes effect at once."""
        config = self._configs.get(*key)
        reference = config.spec.credentials_secret_ref if config is not None else None
        secret = self._views.secrets.get(key[0], reference.name) if reference else None
        data = secret.data if secret is not None else {}
        return {name: base64.b64decode(value) for name, value in data.items()}


def backend_of(
    config: ProviderConfig, *, lab: str, credentials: Callable[[], Mapping[str, bytes]]
) -> Backend:
    """What a provider is told of a ProviderConfig."""
    spec = provider_status.in_effect(config)
    return Backend(
        key=key_of(config),
        lab=lab,
        endpoint=spec.endpoint,
        parameters=spec.parameters,
        limits=provider_status.limits(spec.limits),
        place=provider_status.place_of(spec),
        closing=config.metadata.deletion_timestamp is not None,
        changed=bool(provider_status.pending(config)),
        credentials=credentials,
    )


def watch_providers(
    views: Views,
    provisioners: Mapping[str, BackedProvisioner],
    add: Callable[[Key], None],
) -> None:
    """Start a pass when a ProviderConfig changes, or a provisioner asks for a listing.

    The first pass is for none of them: provisioners are told their backends, even if there are
    none, before they can say that a machine is gone.
    """

    def changed(old: ProviderConfig | None, new: ProviderConfig | None) -> None:
        value = new or old
        assert value is not None
        # Not after every write of its status, which would list it again at once.
        if old is None or new is None or _facts(old) != _facts(new):
            add(key_of(value))

    def class_changed(old: VirtualTargetClass | None, new: VirtualTargetClass | None) -> None:
        value = new or old
        assert value is not None
        if value.spec.provider_config_ref is not None:
            add((value.metadata.namespace, value.spec.provider_config_ref.name))

    views[ProviderConfig].listen(changed)
    views.classes.listen(class_changed)
    for provisioner in provisioners.values():
        provisioner.listen_backends(add)
    add(("", ""))


def _facts(config: ProviderConfig) -> tuple[object, ...]:
    meta = config.metadata
    place = meta.annotations.get(provider_status.PLACE)
    return meta.uid, meta.generation, meta.deletion_timestamp, meta.finalizers, place
