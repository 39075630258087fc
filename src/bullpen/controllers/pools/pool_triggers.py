"""What starts a pass over a pool: every change its decision depends on, and no other."""

from __future__ import annotations

from collections.abc import Callable

from bullpen.api.fields import Kind
from bullpen.api.kinds.core import ConfigMap, Secret
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.exporterset import ExporterSet
from bullpen.api.kinds.lease import Lease
from bullpen.api.kinds.providerconfig import ProviderConfig
from bullpen.api.kinds.virtualtargetclass import VirtualTargetClass
from bullpen.api.objects import meta_of
from bullpen.controllers.labs import Labs
from bullpen.controllers.pools.member_views import is_free, owner_key
from bullpen.controllers.pools.pool_demand import PoolDemand
from bullpen.controllers.targets.instance_view import InstanceView
from bullpen.controllers.views import Views
from bullpen.core.lab_index import is_waiting, wanted_by
from bullpen.core.matcher import Matcher
from bullpen.runtime.informer import Key, key_of


def watch_pools(
    views: Views,
    labs: Labs,
    instance_view: InstanceView,
    demand: PoolDemand,
    add: Callable[[Key], None],
) -> None:
    """Call ``add`` with every set that needs a pass."""
    news = _News(views, demand, add)
    views.sets.listen(news.set_changed)
    views.classes.listen(news.class_changed)
    views.exporters.listen(news.exporter_changed)
    labs.leases.listen(news.lease_changed)
    views.secrets.listen(news.secret_changed)
    views.configmaps.listen(news.configmap_changed)
    views[ProviderConfig].listen(news.provider_changed)
    views.policies.listen(news.rights_changed)
    views.clients.listen(news.rights_changed)
    instance_view.listen(news.instance_changed)


class _News:
    def __init__(self, views: Views, demand: PoolDemand, add: Callable[[Key], None]) -> None:
        self._views = views
        self._demand = demand
        self._add = add

    def set_changed(self, old: ExporterSet | None, new: ExporterSet | None) -> None:
        value = new or old
        assert value is not None
        # Status changes are our own writes and need no pass.
        if old is None or new is None or _version(old) != _version(new):
            self._add(key_of(value))
            self._wanted(value.metadata.namespace)

    def class_changed(self, old: VirtualTargetClass | None, new: VirtualTargetClass | None) -> None:
        value = new or old
        assert value is not None
        for owner in self._views.sets.all(value.metadata.namespace):
            if owner.spec.virtual_target_class_name == value.metadata.name:
                self._add(key_of(owner))

    def exporter_changed(self, old: Exporter | None, new: Exporter | None) -> None:
        if old is not None and new is not None and _facts(old) == _facts(new):
            return
        owners = {owner_key(value) for value in (old, new) if value is not None}
        for owner in owners - {None}:
            assert owner is not None
            self._add(owner)
        value = new or old
        assert value is not None
        if None in owners and _was_free(old) != _was_free(new):
            self._wanted(value.metadata.namespace)

    def instance_changed(self, key: Key) -> None:
        exporter = self._views.exporters.get(*key)
        owner = owner_key(exporter) if exporter is not None else None
        if owner is not None:
            self._add(owner)

    def lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        if _wait(old) == _wait(new):
            return
        value = new or old
        assert value is not None
        # Other waiting leases may lose the exporter this lease takes, or get the one it leaves.
        self._wanted(value.metadata.namespace, wanted_by(old), wanted_by(new))

    def secret_changed(self, old: Secret | None, new: Secret | None) -> None:
        value = new or old
        assert value is not None
        namespace, name = key_of(value)
        for reference in value.metadata.owner_references:
            if reference.kind == Exporter.kind:
                self.instance_changed((namespace, reference.name))
                return
        self._referring(
            namespace,
            lambda found: (
                found.spec.credentials_secret_ref is not None
                and found.spec.credentials_secret_ref.name == name
            ),
        )

    def provider_changed(self, old: ProviderConfig | None, new: ProviderConfig | None) -> None:
        value = new or old
        assert value is not None
        if old is not None and new is not None:
            return
        namespace, name = key_of(value)
        self._referring(
            namespace,
            lambda found: (
                found.spec.provider_config_ref is not None
                and found.spec.provider_config_ref.name == name
            ),
        )

    def configmap_changed(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        value = new or old
        assert value is not None
        namespace, name = key_of(value)
        self._referring(
            namespace,
            lambda found: (
                found.spec.ca_bundle_config_map_ref is not None
                and found.spec.ca_bundle_config_map_ref.name == name
            ),
        )

    def rights_changed(self, old: Kind | None, new: Kind | None) -> None:
        value = new or old
        assert value is not None
        self._wanted(meta_of(value).namespace)

    def _referring(self, namespace: str, refers: Callable[[VirtualTargetClass], bool]) -> None:
        for found in self._views.classes.all(namespace):
            if refers(found):
                self.class_changed(found, found)

    def _wanted(self, namespace: str, *more: Matcher | None) -> None:
        """Every set that could serve a waiting lease, or one of ``more``."""
        matchers = [matcher for matcher in more if matcher is not None]
        for owner in self._views.sets.all(namespace):
            if self._demand.wanted(owner, *matchers):
                self._add(key_of(owner))


def _version(owner: ExporterSet) -> tuple[object, ...]:
    meta = owner.metadata
    return meta.uid, meta.generation, meta.deletion_timestamp


def _facts(exporter: Exporter) -> tuple[object, ...]:
    """The fields a decision depends on; an exporter's messages and times change far more often."""
    meta, status = exporter.metadata, exporter.status
    return (
        meta.uid,
        meta.labels,
        meta.deletion_timestamp,
        meta.owner_references,
        exporter.spec.enabled,
        status.lease_ref,
        status.lease_epoch,
        status.exporter_status,
        status.credential,
        tuple((condition.type, condition.status) for condition in status.conditions),
    )


def _was_free(exporter: Exporter | None) -> bool:
    return exporter is not None and is_free(exporter)


def _wait(lease: Lease | None) -> object:
    """The want of a waiting lease; None if the lease does not wait."""
    return lease.spec if lease is not None and is_waiting(lease) else None
