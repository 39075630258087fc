"""What a process counts, for Prometheus: pools, disks, faults, audit log and connections.

Everything is read at each scrape. The labels name sets and kinds, whose number is limited,
and never members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bullpen.api.kinds.exporterset import ExporterSet
from bullpen.api.kinds.providerconfig import ProviderConfig
from bullpen.api.kinds.virtualdisk import VirtualDisk
from bullpen.api.kinds.virtualtargetpool import FREE_SINCE, POOL_NAME, VirtualTargetPool
from bullpen.audit.log import AuditLog
from bullpen.controllers.faults import unprocessed
from bullpen.controllers.views import Views
from bullpen.controllers.webhooks import WebhookReconciler
from bullpen.core import conditions
from bullpen.core.targets import provider_status
from bullpen.runtime.faults import Faults

LABELS = ("namespace", "pool")

PROVIDER_METRICS = {
    "reachable": "Whether the provider of a ProviderConfig answers.",
    "instances": "Instances of this lab that exist at the provider.",
    "orphans": "Instances that no Exporter stands for.",
    "hourly_cost": "Estimated cost of all instances, per hour.",
}


def lab_metrics(views: Views, *, providers: bool = True) -> tuple[Collector, ...]:
    """The metrics of every process that runs controllers.

    ``providers``: it has provisioners, so the metrics of providers and of lasting targets too.
    """
    own: tuple[Collector, ...] = ()
    if providers:
        lasting = LastingPoolMetrics(views[VirtualTargetPool].all, views[VirtualDisk].all)
        own = ProviderMetrics(views[ProviderConfig].all), lasting
    return PoolMetrics(views.sets.all), FaultMetrics(views.faults), *own


class PoolMetrics(Collector):
    def __init__(self, sets: Callable[[], Iterable[ExporterSet]]) -> None:
        self._sets = sets

    def collect(self) -> Iterator[Metric]:
        replicas = GaugeMetricFamily(
            "bullpen_pool_replicas", "Members of a pool, by state.", labels=(*LABELS, "state")
        )
        created = CounterMetricFamily(
            "bullpen_pool_members_created", "Members created by a pool.", labels=LABELS
        )
        failing = GaugeMetricFamily(
            "bullpen_pool_start_failures",
            "Failures to start since the last success.",
            labels=LABELS,
        )
        boots = GaugeMetricFamily(
            "bullpen_pool_boot_seconds",
            "How long recent members took to become ready, by percentile.",
            labels=(*LABELS, "percentile"),
        )
        wrong = GaugeMetricFamily(
            "bullpen_pool_boot_estimate_error_seconds",
            "Median difference between recent boots and their estimates.",
            labels=LABELS,
        )
        for owner in self._sets():
            named = (owner.metadata.namespace, owner.metadata.name)
            status = owner.status
            for state, count in (
                ("all", status.replicas),
                ("ready", status.ready_replicas),
                ("available", status.available_replicas),
                ("leased", status.leased_replicas),
            ):
                replicas.add_metric((*named, state), count)
            created.add_metric(named, status.created)
            failing.add_metric(named, status.start_failures.count if status.start_failures else 0)
            measured = status.boot_times
            for percentile, boot in (
                ("50", status.typical_boot),
                ("90", measured.slow if measured else None),
            ):
                if boot is not None:
                    boots.add_metric((*named, percentile), boot.total_seconds())
            if measured is not None and measured.estimate_error is not None:
                wrong.add_metric(named, measured.estimate_error.total_seconds())
        yield from (replicas, created, failing, boots, wrong)


class LastingPoolMetrics(Collector):
    """Pools of lasting targets, and their disks."""

    def __init__(
        self,
        pools: Callable[[], Iterable[VirtualTargetPool]],
        disks: Callable[[], Iterable[VirtualDisk]],
    ) -> None:
        self._pools = pools
        self._disks = disks

    def collect(self) -> Iterator[Metric]:
        replicas = GaugeMetricFamily(
            "bullpen_lasting_pool_replicas",
            "Members of a pool of lasting targets, by state.",
            labels=(*LABELS, "state"),
        )
        created = CounterMetricFamily(
            "bullpen_lasting_pool_members_created",
            "Members created by a pool of lasting targets.",
            labels=LABELS,
        )
        leaving = GaugeMetricFamily(
            "bullpen_lasting_pool_removals",
            "Members that were removed by name and are not gone yet.",
            labels=LABELS,
        )
        refused = GaugeMetricFamily(
            "bullpen_lasting_pool_refused_writes",
            "Consecutive refusals of an operation on members, by operation.",
            labels=(*LABELS, "operation"),
        )
        for pool in self._pools():
            named, status = (pool.metadata.namespace, pool.metadata.name), pool.status
            for state, count in (
                ("wanted", pool.spec.replicas),
                ("all", status.replicas),
                ("ready", status.ready_replicas),
                ("available", status.available_replicas),
                ("leased", status.leased_replicas),
                ("updated", status.updated_replicas),
                ("restart_pending", status.restart_pending_replicas),
            ):
                replicas.add_metric((*named, state), count)
            created.add_metric(named, status.created)
            leaving.add_metric(named, len(pool.spec.removals))
            for write in status.refused_writes:
                refused.add_metric((*named, write.operation), write.count)
        yield from (replicas, created, leaving, refused, self._disk_counts())

    def _disk_counts(self) -> Metric:
        counts = Counter(
            (
                disk.metadata.namespace,
                disk.metadata.labels.get(POOL_NAME, ""),
                "free" if FREE_SINCE in disk.metadata.annotations else disk.status.phase.lower(),
            )
            for disk in self._disks()
        )
        family = GaugeMetricFamily(
            "bullpen_lasting_disks",
            "Lasting disks by pool and phase, free ones apart; pool is empty for those of none.",
            labels=(*LABELS, "state"),
        )
        for labels, count in sorted(counts.items()):
            family.add_metric(labels, count)
        return family


class ProviderMetrics(Collector):
    def __init__(self, configs: Callable[[], Iterable[ProviderConfig]]) -> None:
        self._configs = configs

    def collect(self) -> Iterator[Metric]:
        labels = ("namespace", "provider")
        families = {
            name: GaugeMetricFamily(f"bullpen_provider_{name}", text, labels=labels)
            for name, text in PROVIDER_METRICS.items()
        }
        for config in self._configs():
            status = config.status
            values = {
                "reachable": conditions.holds(status.conditions, provider_status.REACHABLE),
                "instances": status.instances,
                "orphans": status.orphans,
                "hourly_cost": float(status.hourly_cost or 0),
            }
            for name, family in families.items():
                named = (config.metadata.namespace, config.metadata.name)
                family.add_metric(named, float(values[name]))
        yield from families.values()


class FaultMetrics(Collector):
    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def collect(self) -> Iterator[Metric]:
        present = GaugeMetricFamily(
            "bullpen_objects_unprocessed",
            "Objects that cannot be processed because of a bug, by kind.",
            labels=("kind",),
        )
        for kind, count in sorted(unprocessed(self._faults).items()):
            present.add_metric((kind,), count)
        failures = CounterMetricFamily(
            "bullpen_object_failures",
            "Unexpected failures to process an object, by kind and part of the service.",
            labels=("kind", "part"),
        )
        for (kind, part), count in sorted(self._faults.counts.items()):
            failures.add_metric((kind, part), count)
        yield from (present, failures)


class WebhookMetrics(Collector):
    def __init__(self, webhooks: WebhookReconciler) -> None:
        self._webhooks = webhooks

    def collect(self) -> Iterator[Metric]:
        sent = CounterMetricFamily(
            "bullpen_webhook_messages",
            "Messages to webhooks that were delivered, failed and will be tried again, or were"
            " given up.",
            labels=("webhook", "result"),
        )
        for (name, result), count in sorted(self._webhooks.results.items()):
            sent.add_metric((name, result), count)
        queued = GaugeMetricFamily(
            "bullpen_webhook_queued", "Messages that wait for a webhook.", labels=("webhook",)
        )
        for name, count in sorted(self._webhooks.queued().items()):
            queued.add_metric((name,), count)
        yield from (sent, queued)


class AuditMetrics(Collector):
    def __init__(self, log: AuditLog) -> None:
        self._log = log

    def collect(self) -> Iterator[CounterMetricFamily]:
        yield CounterMetricFamily(
            "bullpen_audit_events", "Events accepted by the audit log.", value=self._log.recorded
        )
        yield CounterMetricFamily(
            "bullpen_audit_dropped",
            "Events that the audit log lost, because its disk was stuck or full.",
            value=self._log.dropped,
        )


class Counting(Protocol):
    """A port whose connections are counted."""

    name: str
    displaced: int
    refused: int


class ConnectionMetrics(Collector):
    def __init__(self, ports: Iterable[Counting]) -> None:
        self._ports = tuple(ports)

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "bullpen_connections_closed",
            "Connections closed because there were too many, by port and reason.",
            labels=("port", "reason"),
        )
        for port in self._ports:
            family.add_metric((port.name, "displaced"), port.displaced)
            family.add_metric((port.name, "refused"), port.refused)
        yield family
