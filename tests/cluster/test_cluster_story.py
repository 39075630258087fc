"""The whole service in the cluster that KUBECONFIG names, each story in its own namespace.

What `bullpen manifests` prints is applied first, and each process has the rights it gives
to it and no others. All but the definitions is deleted afterwards.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from bullpen.protocol import externalscaler_pb2 as pb
from bullpen.protocol import externalscaler_pb2_grpc
from support import cluster_stories, external_metrics, lasting_stories
from support.client_certificates import authority, certificate
from support.cluster_lab import ClusterLab

RUN_HERE = (
    "Deployment",
    "StatefulSet",
    "Service",
    "NetworkPolicy",
    "PodDisruptionBudget",
    "APIService",
)
"""What would have our processes run as Pods, and what names them."""

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

SAMPLES = os.environ.get("SAMPLES", "")
"""A folder with upstream's own samples of sets and classes, which are not ours to keep here."""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[ClusterLab]:
    """A namespace with everything installed in it, but for Pods: the processes run here."""
    name = f"bullpen-story-{uuid.uuid4().hex[:8]}"
    lab = ClusterLab(tmp_path / "lab", Path(os.environ["KUBECONFIG"]), name)
    printed = lab.bullpen("manifests", "-n", name, "-o", "json").stdout
    installed = [item for item in json.loads(printed)["items"] if item["kind"] not in RUN_HERE]
    text = yaml.safe_dump_all(installed)
    try:
        lab.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=text)
        lab.accounts = True
        yield lab
    finally:
        lab.end_all()
        own = [item for item in installed if item["kind"] != "CustomResourceDefinition"]
        lab.kubectl("delete", "--wait=false", "-f", "-", input=yaml.safe_dump_all(own))


def test_a_killed_leader_is_replaced_and_nothing_is_lost(lab: ClusterLab) -> None:
    cluster_stories.forced_change_of_leader(lab)


def test_a_leader_in_whose_place_another_is_stops_and_says_so(lab: ClusterLab) -> None:
    cluster_stories.stolen_leadership(lab)


def test_a_provisioner_in_a_process_of_its_own_keeps_its_pools(lab: ClusterLab) -> None:
    cluster_stories.pool_on_this_machine(lab)


def test_pods_hold_the_pool_until_a_node_runs_them(lab: ClusterLab) -> None:
    cluster_stories.pool_of_pods_without_nodes(lab)


def test_lasting_pods_come_and_go_and_their_claims_stay(lab: ClusterLab) -> None:
    lasting_stories.lasting_pods_without_nodes(lab)


@pytest.mark.skipif(not SAMPLES, reason="SAMPLES names no folder with upstream's manifests")
def test_upstreams_samples_apply_unchanged(lab: ClusterLab) -> None:
    """Unchanged but for the namespace they name."""
    texts = [path.read_text() for path in sorted(Path(SAMPLES).glob("*.yaml"))]
    for document in (item for text in texts for item in yaml.safe_load_all(text)):
        document["metadata"]["namespace"] = lab.namespace
        cluster_stories.apply(lab, document)
    found = cluster_stories.get(lab, "exporterset,virtualtargetclass")["items"]
    assert {item["kind"] for item in found} == {"ExporterSet", "VirtualTargetClass"}


def test_the_ceiling_of_a_pool_moves_with_kubectl_scale(lab: ClusterLab) -> None:
    cluster_stories.apply(lab, *cluster_stories.pool("p", "nobody.example.com", maxReplicas=2))
    lab.kubectl("scale", "exporterset/p", "-n", lab.namespace, "--replicas=5")
    assert cluster_stories.get(lab, "exporterset", "p")["spec"]["maxReplicas"] == 5


API_OFFSET, SCALER_OFFSET = 5, 6
"""From the base of the ports of a lab."""

REACHED_AT = os.environ.get("API_SERVER_REACHES", "")
"""The host name under which the API server of the cluster reaches this machine."""


@pytest.fixture
def aggregated(lab: ClusterLab) -> Iterator[tuple[ClusterLab, int]]:
    """The APIService too, answered by a process here; and the port at which."""
    port = lab.port + API_OFFSET
    printed = lab.bullpen("manifests", "-n", lab.namespace, "-o", "json").stdout
    (found,) = [item for item in json.loads(printed)["items"] if item["kind"] == "APIService"]
    found["spec"]["service"]["port"] = port
    name = found["spec"]["service"]["name"]
    # A Service without Pods: a name of this machine.
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": lab.namespace},
        "spec": {"type": "ExternalName", "externalName": REACHED_AT},
    }
    text = yaml.safe_dump_all([service, found])
    lab.kubectl("apply", "-f", "-", input=text)
    try:
        yield lab, port
    finally:
        lab.kubectl("delete", "-f", "-", input=text)


@pytest.mark.skipif(not REACHED_AT, reason="API_SERVER_REACHES names no host of this machine")
@pytest.mark.timeout(400)
def test_lasting_machines_grow_leave_by_name_and_reuse_disks(
    aggregated: tuple[ClusterLab, int],
) -> None:
    """Upstream's own story, with removal by name through the aggregation layer."""
    lab, port = aggregated
    lasting_stories.lasting_machines(lab, "--api-port", str(port))


@pytest.mark.skipif(not REACHED_AT, reason="API_SERVER_REACHES names no host of this machine")
@pytest.mark.timeout(600)
def test_an_hpa_scales_a_pool_by_its_leases(lab: ClusterLab, tmp_path: Path) -> None:
    """The autoscaler of kube-controller-manager, fed by the external scaler as KEDA feeds it."""
    ca, key = authority(tmp_path / "authority")
    port = lab.port + SCALER_OFFSET
    lab.controller("controller-a", "--scaler-client-ca", str(ca), "--scaler-port", str(port))
    lab.leader()
    keda = certificate(tmp_path, "/CN=keda", ca, key)
    pools = "virtualtargetpools.virtualtarget.jumpstarter.dev"
    here = ("-n", lab.namespace)
    lab.kubectl("create", "role", "pools", "--verb=get", f"--resource={pools}", *here)
    lab.kubectl("create", "rolebinding", "keda", "--role=pools", "--user=keda", *here)
    published = cluster_stories.get(lab, "configmap", "jumpstarter-service-ca-cert")["data"]
    credentials = grpc.ssl_channel_credentials(
        next(iter(published.values())).encode(),
        Path(keda["client-key"]).read_bytes(),
        Path(keda["client-certificate"]).read_bytes(),
    )
    channel = grpc.secure_channel(f"127.0.0.1:{port}", credentials)
    scaler: Any = externalscaler_pb2_grpc.ExternalScalerStub(channel)  # type: ignore[no-untyped-call]
    ref = pb.ScaledObjectRef(namespace=lab.namespace, scalerMetadata={"name": "runners"})

    def value_of(metric: str) -> float:
        request = pb.GetMetricsRequest(scaledObjectRef=ref, metricName=metric)
        (found,) = scaler.GetMetrics(request, timeout=30).metricValues
        return float(found.metricValueFloat)

    with (
        channel,
        external_metrics.adapter((ca, key), value_of) as (metrics_port, asked),
        metrics_api(lab, metrics_port, external_metrics.EXTERNAL),
    ):
        lasting_stories.autoscaled_machines(lab)
        assert set(asked) == {"leases"}


@pytest.mark.skipif(not REACHED_AT, reason="API_SERVER_REACHES names no host of this machine")
@pytest.mark.timeout(600)
def test_an_hpa_scales_a_pool_by_the_memory_of_its_pods(lab: ClusterLab, tmp_path: Path) -> None:
    """It finds them by the selector in the status of the pool, and no others."""

    def pods(namespace: str, selector: str) -> list[str]:
        found = lab.kubectl("get", "pods", "-n", namespace, "-l", selector, "-o", "name").stdout
        return [line.removeprefix("pod/") for line in found.split()]

    with (
        external_metrics.pod_metrics(authority(tmp_path / "ca"), pods, "200Mi") as (port, asked),
        metrics_api(lab, port, external_metrics.OF_PODS),
    ):
        uid = lasting_stories.autoscaled_pods(lab, lambda: bool(asked))
        assert set(asked) == {f"virtualtarget.jumpstarter.dev/pool-uid={uid}"}


@contextlib.contextmanager
def metrics_api(lab: ClusterLab, port: int, group: str) -> Iterator[None]:
    """A metrics API of the cluster, answered at a port of this machine."""
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "metrics", "namespace": lab.namespace},
        "spec": {"type": "ExternalName", "externalName": REACHED_AT},
    }
    text = yaml.safe_dump_all(
        [service, external_metrics.api_service("metrics", lab.namespace, port, group)]
    )
    lab.kubectl("apply", "-f", "-", input=text)
    try:
        yield
    finally:
        lab.kubectl("delete", "-f", "-", input=text)
