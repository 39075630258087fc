"""Workloads become Pods that Kubernetes accepts and that are given nothing they do not need."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.api import codec
from bullpen.api.kinds.virtualtargetclass import ResourceRequirements, Scheduling
from bullpen.errors import Refused
from bullpen.placements.base import Workload
from bullpen.placements.pod import names, rendering
from support.k8s_schemas import RELEASES, problems
from support.k8s_workloads import (
    DEMANDING,
    GOLDEN,
    MOCK,
    QEMU,
    SETTINGS,
    WORKLOADS,
    changed,
    rendered,
)


def pod_of(workload: Workload) -> dict[str, Any]:
    return codec.encode(rendering.pod(workload, SETTINGS))


def containers(workload: Workload) -> Iterator[dict[str, Any]]:
    spec = pod_of(workload)["spec"]
    yield from spec.get("initContainers", ())
    yield from spec["containers"]


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_pod_is_as_it_was_agreed(name: str) -> None:
    assert rendered(WORKLOADS[name]) == (GOLDEN / f"{name}.yaml").read_text()


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", WORKLOADS)
def test_kubernetes_schema_accepts_it(name: str, release: str) -> None:
    assert problems(pod_of(WORKLOADS[name]), release) == []


@pytest.mark.parametrize("release", RELEASES)
def test_kubernetes_schema_accepts_the_secret(release: str) -> None:
    secret = codec.encode(rendering.config_secret(QEMU))
    assert problems(secret, release) == []
    assert json.loads(base64.b64decode(secret["data"]["config.yaml"]))["token"] == "a secret"
    assert secret["metadata"]["name"] == "exporter-config-uboot-3"


@pytest.mark.parametrize("name", WORKLOADS)
def test_nothing_in_a_pod_can_do_more_than_run(name: str) -> None:
    """What Pod Security calls restricted, container by container."""
    workload = WORKLOADS[name]
    spec = pod_of(workload)["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}
    assert {kind for volume in spec["volumes"] for kind in volume} <= {
        "name",
        "secret",
        "emptyDir",
        "downwardAPI",
        "persistentVolumeClaim",
    }
    for container in containers(workload):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "privileged": False,
            "readOnlyRootFilesystem": True,
        }


@pytest.mark.parametrize("name", WORKLOADS)
def test_whatever_a_container_writes_is_on_a_volume(name: str) -> None:
    for container in containers(WORKLOADS[name]):
        mounts = [m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")]
        for variable in container.get("env", ()):
            assert variable["value"].startswith(tuple(mounts)), variable


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_mount_has_its_volume_and_every_volume_a_mount(name: str) -> None:
    mounted = {m["name"] for c in containers(WORKLOADS[name]) for m in c["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod_of(WORKLOADS[name])["spec"]["volumes"]}


def test_the_exporter_runs_after_its_runtime_which_stays() -> None:
    spec = pod_of(QEMU)["spec"]
    prepare, runtime = spec["initContainers"]
    (exporter,) = spec["containers"]
    assert (prepare["name"], runtime["name"], exporter["name"]) == (
        "prepare",
        "target-runtime",
        "exporter",
    )
    assert runtime["restartPolicy"] == "Always", "which makes it a sidecar"
    assert "startupProbe" in runtime, "or the exporter would not wait for it"
    assert spec["restartPolicy"] == "Never"


def test_a_target_that_is_only_an_exporter_has_no_runtime() -> None:
    spec = pod_of(MOCK)["spec"]
    assert "initContainers" not in spec
    assert [container["name"] for container in spec["containers"]] == ["exporter"]
    assert rendering.site(MOCK).launcher == ""


def test_pod_and_secret_go_with_their_exporter() -> None:
    owner = {
        "apiVersion": "jumpstarter.dev/v1alpha1",
        "kind": "Exporter",
        "name": "uboot-3",
        "uid": "uid-3",
        "controller": True,
        "blockOwnerDeletion": True,
    }
    for made in (rendering.pod(QEMU, SETTINGS), rendering.config_secret(QEMU)):
        assert codec.encode(made)["metadata"]["ownerReferences"] == [owner]


def test_credentials_are_the_class_s_own_secret_and_nowhere_else() -> None:
    workload = replace(
        DEMANDING, spec=replace(DEMANDING.spec, credentials={"password": b"of the backend"})
    )
    text = str(pod_of(workload)) + str(codec.encode(rendering.config_secret(workload)))
    assert "backend-login" in text
    assert "of the backend" not in text
    assert base64.b64encode(b"of the backend").decode() not in text


def test_what_a_provider_grants_is_in_the_secret_of_the_config_and_in_a_directory() -> None:
    workload = replace(DEMANDING, granted={"session": b"for one machine"})
    assert rendering.config_secret(workload).read("session") == b"for one machine"
    spec = pod_of(workload)["spec"]
    (volume,) = [each for each in spec["volumes"] if each["name"] == "granted"]
    assert volume["secret"]["items"] == [{"key": "session", "path": "session"}]
    mounts = [each for made in spec["containers"] for each in made["volumeMounts"]]
    assert [each["mountPath"] for each in mounts if each["name"] == "granted"] == [
        str(names.GRANTED)
    ]
    assert "granted" not in str(pod_of(DEMANDING))


def test_no_token_is_in_a_pod() -> None:
    assert "a secret" not in rendered(QEMU)


@pytest.mark.parametrize(
    ("limits", "kvm"),
    [
        pytest.param({}, False, id="not asked for"),
        pytest.param({"devices.kubevirt.io/kvm": 1}, True, id="by one device plug-in"),
        pytest.param({"smarter-devices/kvm": "1"}, True, id="by another"),
        pytest.param({"example.com/kvm-slots": 1}, False, id="something of a similar name"),
    ],
)
def test_kvm_is_counted_on_when_the_class_asks_for_the_device(
    limits: dict[str, int | str], kvm: bool
) -> None:
    scheduling = Scheduling(resources=ResourceRequirements(limits=limits))
    workload = changed(QEMU, scheduling=scheduling, labels={})
    assert rendering.site(workload).kvm is kvm


def test_files_are_in_the_runtime_image_or_fetched_before_it_starts() -> None:
    here, fetched = rendering.site(QEMU).artifacts.values()
    assert str(here) == "/usr/lib/u-boot/qemu_arm64/u-boot.bin"
    assert str(fetched) == f"/shared/artifacts/sha256/{'a' * 64}"
    prepare = next(containers(QEMU))
    (told,) = prepare["args"]
    assert "https://images.example/root.qcow2" in told


def test_a_limit_is_never_contradicted_by_what_we_would_ask_for() -> None:
    runtime = list(containers(DEMANDING))[1]
    assert runtime["resources"] == {
        "requests": {"cpu": 2},
        "limits": {"memory": "2Gi", "devices.kubevirt.io/kvm": 1},
    }


def test_what_the_class_says_nothing_about_is_what_the_target_needs() -> None:
    runtime = list(containers(QEMU))[1]
    assert runtime["resources"] == {"requests": {"cpu": "1000m", "memory": str(288 << 20)}}


def test_what_a_target_may_use_at_most_is_its_limit_unless_the_class_says_more() -> None:
    bounded = replace(QEMU, needs=replace(QEMU.needs, memory_bytes_max=512 << 20))
    runtime = list(containers(bounded))[1]
    assert runtime["resources"]["limits"] == {"memory": str(512 << 20)}
    asked = Scheduling(resources=ResourceRequirements(requests={"memory": "4Gi"}))
    runtime = list(containers(changed(bounded, scheduling=asked, labels={})))[1]
    assert "limits" not in runtime["resources"]


def test_what_cannot_be_kept_is_refused_instead_of_forgotten() -> None:
    with pytest.raises(Refused, match="Retain"):
        rendering.pod(changed(QEMU, retain=True), SETTINGS)


def test_a_runtime_without_an_image_is_refused() -> None:
    with pytest.raises(Refused, match=r"images\.runtime"):
        rendering.pod(QEMU, replace(SETTINGS, runtime_images={}))


labels = st.dictionaries(
    st.sampled_from(["board", "app.kubernetes.io/managed-by", names.PROVISIONER]),
    st.sampled_from(["x", "helm"]),
)


@given(labels)
def test_no_label_of_a_template_hides_whose_a_pod_is(chosen: dict[str, str]) -> None:
    found = rendering.pod(changed(QEMU, labels=chosen), SETTINGS).metadata.labels
    assert found["app.kubernetes.io/managed-by"] == "bullpen"
    assert found[names.PROVISIONER] == "qemu.jumpstarter.dev"
    assert found.get("board") == chosen.get("board")


def test_socket_paths_are_short_enough() -> None:
    longest = f"{names.SHARED}/{names.SOCKETS}/qemu-abcdefgh/vnc"
    assert len(longest) < 100
    assert re.fullmatch(r"/shared/run/launcher", str(names.LAUNCHER_SOCKET))
