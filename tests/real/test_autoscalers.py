"""Autoscalers and ``bullpen up``: KEDA's protocol, with a certificate made as the how-to says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from bullpen.protocol import externalscaler_pb2 as pb
from bullpen.protocol import externalscaler_pb2_grpc
from support.client_certificates import certificate
from support.real_service import Service, running_service

pytestmark = pytest.mark.real

POOL = """
apiVersion: virtualtarget.jumpstarter.dev/v1alpha1
kind: VirtualTargetPool
metadata: {name: runners, namespace: default}
spec:
  replicas: 0
  scaleDownPolicy: NewestFirst
  template:
    metadata: {labels: {role: runner}}
    spec: {virtualTargetClassName: any}
"""
CALL_SECONDS_MAX = 60.0


@pytest.fixture
def scaled(tmp_path: Path) -> Iterator[Service]:
    (tmp_path / "config.yaml").write_text("externalScaler: {enabled: true}\n")
    with running_service(tmp_path, "--config", str(tmp_path / "config.yaml")) as running:
        yield running


def stub(service: Service, user: str, directory: Path) -> Any:
    pki = service.data / "pki"
    shown = certificate(directory, f"/CN={user}", pki / "ca.crt", pki / "ca.key")
    credentials = grpc.ssl_channel_credentials(
        (pki / "ca.crt").read_bytes(),
        Path(shown["client-key"]).read_bytes(),
        Path(shown["client-certificate"]).read_bytes(),
    )
    channel = grpc.secure_channel(service.endpoints["scaler"], credentials)
    made: Any = externalscaler_pb2_grpc.ExternalScalerStub(channel)  # type: ignore[no-untyped-call]
    return made


def test_keda_asks_bullpen_up_for_the_load_of_a_pool(scaled: Service, tmp_path: Path) -> None:
    scaled.kubectl("apply", "-f", "-", input=POOL)
    keda = stub(scaled, "keda", tmp_path)
    ref = pb.ScaledObjectRef(namespace="default", scalerMetadata={"name": "runners"})
    asked = pb.GetMetricsRequest(scaledObjectRef=ref, metricName="leases")
    with pytest.raises(grpc.RpcError) as refused:
        keda.GetMetrics(asked, timeout=CALL_SECONDS_MAX)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    pools = "virtualtargetpools.virtualtarget.jumpstarter.dev"
    scaled.kubectl("create", "role", "pool-reader", "--verb=get", f"--resource={pools}")
    scaled.kubectl("create", "rolebinding", "keda", "--role=pool-reader", "--user=keda")
    (found,) = keda.GetMetrics(asked, timeout=CALL_SECONDS_MAX).metricValues
    assert (found.metricName, found.metricValueFloat) == ("leases", 0.0)
    (spec,) = keda.GetMetricSpec(ref, timeout=CALL_SECONDS_MAX).metricSpecs
    assert spec.targetSizeFloat == 1.0
