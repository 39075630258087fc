"""Every kubectl command a person would use, run by the real kubectl, against every kind."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.real_service import Service, eventually

pytestmark = pytest.mark.real

JUMPSTARTER = "jumpstarter.dev/v1alpha1"
VIRTUAL = "virtualtarget.jumpstarter.dev/v1alpha1"
DEVICE = "device.jumpstarter.dev/v1alpha1"

KINDS: dict[str, dict[str, Any]] = {
    "clients.jumpstarter.dev": {"apiVersion": JUMPSTARTER, "kind": "Client"},
    "exporters.jumpstarter.dev": {
        "apiVersion": JUMPSTARTER,
        "kind": "Exporter",
        "spec": {"enabled": True},
    },
    "leases.jumpstarter.dev": {
        "apiVersion": JUMPSTARTER,
        "kind": "Lease",
        "spec": {
            "clientRef": {"name": "alice"},
            "duration": "30m",
            "beginTime": "2099-01-01T00:00:00Z",
            "selector": {"matchLabels": {"board": "rpi4"}},
        },
    },
    "exporteraccesspolicies.jumpstarter.dev": {
        "apiVersion": JUMPSTARTER,
        "kind": "ExporterAccessPolicy",
        "spec": {
            "exporterSelector": {"matchLabels": {"board": "none"}},
            "policies": [{"priority": 1, "from": [{"clientSelector": {}}]}],
        },
    },
    "virtualtargetclasses.virtualtarget.jumpstarter.dev": {
        "apiVersion": VIRTUAL,
        "kind": "VirtualTargetClass",
        "spec": {"provisioner": "qemu.jumpstarter.dev", "parameters": {"arch": "aarch64"}},
    },
    "exportersets.virtualtarget.jumpstarter.dev": {
        "apiVersion": VIRTUAL,
        "kind": "ExporterSet",
        "spec": {
            "virtualTargetClassName": "none",
            "maxReplicas": 4,
            "selector": {"matchLabels": {"pool": "x"}},
            "template": {"metadata": {"labels": {"pool": "x"}}, "spec": {"drivers": []}},
        },
    },
    "devicepools.device.jumpstarter.dev": {
        "apiVersion": DEVICE,
        "kind": "DevicePool",
        "spec": {"sharedCounters": {"slots": 1}, "devices": [{"name": "a"}]},
    },
    "deviceclaims.device.jumpstarter.dev": {
        "apiVersion": DEVICE,
        "kind": "DeviceClaim",
        "spec": {
            "clientRef": {"name": "alice"},
            "duration": "30m",
            "requests": [{"name": "dut", "exactly": {"deviceClassName": "none"}}],
        },
    },
    "secrets": {"apiVersion": "v1", "kind": "Secret", "data": {"a": "Yg=="}},
    "configmaps": {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}},
    "events": {
        "apiVersion": "v1",
        "kind": "Event",
        "involvedObject": {"kind": "Client", "name": "alice", "namespace": "default"},
        "reason": "Tested",
        "message": "somebody looked",
        "type": "Normal",
        "count": 1,
    },
    "leases.coordination.k8s.io": {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15},
    },
    "namespaces": {"apiVersion": "v1", "kind": "Namespace"},
    "serviceaccounts": {"apiVersion": "v1", "kind": "ServiceAccount"},
    "roles.rbac.authorization.k8s.io": {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}],
    },
    "clusterroles.rbac.authorization.k8s.io": {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}],
    },
    "rolebindings.rbac.authorization.k8s.io": {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "view",
        },
        "subjects": [{"kind": "ServiceAccount", "name": "x", "namespace": "default"}],
    },
    "clusterrolebindings.rbac.authorization.k8s.io": {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "view",
        },
        "subjects": [
            {"kind": "User", "name": "x", "apiGroup": "rbac.authorization.k8s.io"},
        ],
    },
}
CUSTOM = [name for name in KINDS if "jumpstarter.dev" in name]


def client_version() -> tuple[int, int]:
    done = subprocess.run(
        ["kubectl", "version", "--client", "-o", "json"], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)["clientVersion"]
    return int(found["major"]), int(re.sub(r"\D.*", "", found["minor"]))


def needs_kubectl(minor: int, what: str) -> pytest.MarkDecorator:
    """Skips by the version of kubectl, and says what that version lacks."""
    have = client_version()
    reason = f"kubectl {have[0]}.{have[1]} has no {what} (since 1.{minor})"
    return pytest.mark.skipif(have < (1, minor), reason=reason)


def manifest(kind: str, name: str, **meta: Any) -> str:
    return yaml.safe_dump({**KINDS[kind], "metadata": {"name": name, **meta}})


def manifests(kinds: Iterable[str], name: str, **meta: Any) -> str:
    """An object of each kind. kubectl takes them one by one, and starts once for all of them."""
    return "---\n".join(manifest(kind, name, **meta) for kind in kinds)


def apply(service: Service, kind: str, name: str, **meta: Any) -> str:
    return service.kubectl("apply", "-f", "-", input=manifest(kind, name, **meta)).stdout


def apply_all(service: Service, kinds: Iterable[str], name: str, **meta: Any) -> list[str]:
    """What kubectl says about each object, such as ``configured``."""
    text = manifests(kinds, name, **meta)
    return outcomes(service.kubectl("apply", "-f", "-", input=text).stdout)


def outcomes(said: str) -> list[str]:
    return [line.rpartition(" ")[2] for line in said.splitlines()]


def field(service: Service, kind: str, name: str, path: str) -> str:
    return service.kubectl("get", kind, name, "-o", f"jsonpath={{{path}}}").stdout


def objects(service: Service, kinds: Iterable[str], name: str) -> dict[str, dict[str, Any]]:
    """The object of this name of each kind, as ``kubectl get -o json`` prints it."""
    named = (f"{kind}/{name}" for kind in kinds)
    found = json.loads(service.kubectl("get", *named, "-o", "json").stdout)["items"]
    return dict(zip(kinds, found, strict=True))


def labels(service: Service, kinds: Iterable[str], name: str) -> list[dict[str, str]]:
    found = objects(service, kinds, name).values()
    return [each["metadata"].get("labels", {}) for each in found]


def delete_all(service: Service, kinds: Iterable[str], name: str) -> None:
    service.kubectl("delete", *(f"{kind}/{name}" for kind in kinds))


def test_create_get_and_delete(service: Service) -> None:
    name, count = "made", len(KINDS)
    text, every, named = manifests(KINDS, name), ",".join(KINDS), [f"{k}/{name}" for k in KINDS]
    done = service.kubectl("create", "-f", "-", input=text)
    assert outcomes(done.stdout) == ["created"] * count
    again = service.kubectl("create", "-f", "-", input=text, check=False)
    assert again.stderr.count("AlreadyExists") == count
    for kind, found in objects(service, KINDS, name).items():
        assert found["kind"] == KINDS[kind]["kind"]
        assert {"uid", "resourceVersion", "creationTimestamp"} <= found["metadata"].keys(), kind
    for options in ((), ("-o", "wide")):
        tables = service.kubectl("get", every, *options).stdout.split("\n\n")
        assert len(tables) == count
        assert {table.split()[0] for table in tables} == {"NAME", "LAST"}
        assert all(f"/{name}" in table or "LAST" in table for table in tables)
    listed = service.kubectl("get", every, "-o", "name").stdout.split()
    assert sum(line.endswith(f"/{name}") for line in listed) == count
    printed = service.kubectl("get", *named, "-o", "yaml").stdout
    assert [item["metadata"]["name"] for item in yaml.safe_load(printed)["items"]] == [name] * count
    path = "jsonpath={.items[*].metadata.name}"
    assert service.kubectl("get", *named, "-o", path).stdout == " ".join([name] * count)
    deleted = service.kubectl("delete", *named).stdout
    assert len(re.findall(rf'"{name}" deleted', deleted)) == count
    gone = service.kubectl("get", *named, check=False)
    assert gone.stderr.count("NotFound") == count


def test_apply_creates_then_leaves_alone_then_changes(service: Service) -> None:
    count = len(KINDS)
    assert apply_all(service, KINDS, "applied") == ["created"] * count
    assert apply_all(service, KINDS, "applied") == ["unchanged"] * count
    assert apply_all(service, KINDS, "applied", labels={"a": "b"}) == ["configured"] * count
    assert [found.get("a") for found in labels(service, KINDS, "applied")] == ["b"] * count
    assert apply_all(service, KINDS, "applied") == ["configured"] * count
    assert not any("a" in found for found in labels(service, KINDS, "applied"))
    delete_all(service, KINDS, "applied")


def test_server_side_apply_twice(service: Service) -> None:
    text = manifests(KINDS, "ssa", labels={"a": "b"})
    for _ in range(2):
        done = service.kubectl("apply", "--server-side", "-f", "-", input=text)
        assert outcomes(done.stdout) == ["serverside-applied"] * len(KINDS)
    assert all(found.get("a") == "b" for found in labels(service, KINDS, "ssa"))
    service.kubectl("apply", "--server-side", "-f", "-", input=manifests(KINDS, "ssa"))
    assert not any("a" in found for found in labels(service, KINDS, "ssa"))
    delete_all(service, KINDS, "ssa")


def test_server_side_apply_conflicts_are_refused_and_can_be_forced(service: Service) -> None:
    kind = "exportersets.virtualtarget.jumpstarter.dev"
    service.kubectl("apply", "--server-side", "-f", "-", input=manifest(kind, "owned"))
    service.kubectl("scale", kind, "owned", "--replicas=9")
    text = manifest(kind, "owned")
    refused = service.kubectl("apply", "--server-side", "-f", "-", input=text, check=False)
    assert refused.returncode == 1
    assert "conflict" in refused.stderr
    assert "maxReplicas" in refused.stderr
    service.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=text)
    assert field(service, kind, "owned", ".spec.maxReplicas") == "4"
    service.kubectl("delete", kind, "owned")


def test_diff_shows_what_would_change(service: Service) -> None:
    apply_all(service, CUSTOM, "differs")
    same = service.kubectl("diff", "-f", "-", input=manifests(CUSTOM, "differs"))
    assert same.returncode == 0
    changed = service.kubectl(
        "diff", "-f", "-", input=manifests(CUSTOM, "differs", labels={"a": "b"}), check=False
    )
    assert changed.returncode == 1
    assert changed.stdout.count("+    a: b") == len(CUSTOM)
    delete_all(service, CUSTOM, "differs")


def test_describe_shows_the_object_and_its_events(service: Service) -> None:
    apply_all(service, CUSTOM, "described")
    text = service.kubectl("describe", *(f"{kind}/described" for kind in CUSTOM)).stdout
    assert len(re.findall(r"^Name:\s+described", text, re.MULTILINE)) == len(CUSTOM)
    assert len(re.findall(r"^Events:", text, re.MULTILINE)) == len(CUSTOM)
    delete_all(service, CUSTOM, "described")


def test_label_and_annotate(service: Service) -> None:
    apply_all(service, KINDS, "marked")
    named = [f"{kind}/marked" for kind in KINDS]
    service.kubectl("label", *named, "team=a")
    service.kubectl("annotate", *named, "note=hello")
    for found in objects(service, KINDS, "marked").values():
        assert found["metadata"]["labels"]["team"] == "a"
        assert found["metadata"]["annotations"]["note"] == "hello"
    service.kubectl("label", *named, "team-")
    assert not any("team" in found for found in labels(service, KINDS, "marked"))
    delete_all(service, KINDS, "marked")


def test_merge_and_json_patches_work_and_strategic_is_refused(service: Service) -> None:
    apply_all(service, CUSTOM, "patched", labels={"a": "b"})
    named = [f"{kind}/patched" for kind in CUSTOM]
    merge = '{"metadata":{"labels":{"a":null,"c":"d"}}}'
    service.kubectl("patch", *named, "--type=merge", "-p", merge)
    assert labels(service, CUSTOM, "patched") == [{"c": "d"}] * len(CUSTOM)
    operations = '[{"op":"test","path":"/metadata/labels/c","value":"d"},' + (
        '{"op":"replace","path":"/metadata/labels/c","value":"e"}]'
    )
    service.kubectl("patch", *named, "--type=json", "-p", operations)
    assert labels(service, CUSTOM, "patched") == [{"c": "e"}] * len(CUSTOM)
    for kind in named:
        failed = service.kubectl("patch", kind, "--type=json", "-p", operations, check=False)
        assert failed.returncode == 1
        strategic = service.kubectl("patch", kind, "-p", merge, check=False)
        assert "accepted media types include: application/json-patch+json" in strategic.stderr
    delete_all(service, CUSTOM, "patched")


def test_strategic_patches_work_for_core_kinds(service: Service) -> None:
    apply(service, "configmaps", "strategic")
    service.kubectl("patch", "configmap", "strategic", "-p", '{"data":{"x":"y"}}')
    assert field(service, "configmap", "strategic", ".data.x") == "y"
    service.kubectl("patch", "configmap", "strategic", "-p", '{"data":{"x":null}}')
    assert field(service, "configmap", "strategic", ".data.x") == ""
    service.kubectl("delete", "configmap", "strategic")


def test_replace_and_edit(service: Service, tmp_path: Path) -> None:
    apply_all(service, CUSTOM, "replaced")
    before = list(objects(service, CUSTOM, "replaced").values())
    for found in before:
        found["metadata"]["labels"] = {"by": "replace"}
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": before})
    service.kubectl("replace", "-f", "-", input=text)
    assert labels(service, CUSTOM, "replaced") == [{"by": "replace"}] * len(CUSTOM)
    stale = service.kubectl("replace", "-f", "-", input=text, check=False)
    assert stale.stderr.count("Conflict") == len(CUSTOM)
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i "s/by: replace/by: edit/" "$1"\n')
    editor.chmod(0o755)
    named = (f"{kind}/replaced" for kind in CUSTOM)
    service.kubectl("edit", *named, KUBE_EDITOR=str(editor))
    assert labels(service, CUSTOM, "replaced") == [{"by": "edit"}] * len(CUSTOM)
    delete_all(service, CUSTOM, "replaced")


def test_scale_moves_the_ceiling(service: Service) -> None:
    kind = "exportersets.virtualtarget.jumpstarter.dev"
    apply(service, kind, "scaled")
    service.kubectl("scale", kind, "scaled", "--replicas=7")
    assert field(service, kind, "scaled", ".spec.maxReplicas") == "7"
    service.kubectl("scale", kind, "scaled", "--current-replicas=7", "--replicas=2")
    assert field(service, kind, "scaled", ".spec.maxReplicas") == "2"
    wrong = service.kubectl(
        "scale", kind, "scaled", "--current-replicas=7", "--replicas=1", check=False
    )
    assert wrong.returncode == 1
    zero = service.kubectl("scale", kind, "scaled", "--replicas=0", check=False)
    assert "to stop the pool, set spec.paused to true" in zero.stderr
    assert field(service, kind, "scaled", ".spec.maxReplicas") == "2"
    service.kubectl("delete", kind, "scaled")


@needs_kubectl(24, "--subresource")
def test_status_and_spec_cannot_touch_each_other(service: Service) -> None:
    apply(service, "exporters.jumpstarter.dev", "split")
    both = '{"spec":{"enabled":false},"status":{"statusMessage":"hi"}}'
    service.kubectl("patch", "exporter", "split", "--type=merge", "-p", both)
    assert field(service, "exporter", "split", ".spec.enabled") == "false"
    assert field(service, "exporter", "split", ".status.statusMessage") == ""
    both = '{"spec":{"enabled":true},"status":{"statusMessage":"hi"}}'
    service.kubectl(
        "patch", "exporter", "split", "--subresource=status", "--type=merge", "-p", both
    )
    assert field(service, "exporter", "split", ".spec.enabled") == "false"
    assert field(service, "exporter", "split", ".status.statusMessage") == "hi"
    service.kubectl("delete", "exporter", "split")


@needs_kubectl(23, "wait --for=jsonpath")
def test_wait_for_a_field(service: Service) -> None:
    apply(service, "exporters.jumpstarter.dev", "awaited")
    service.kubectl("wait", "--for=jsonpath={.spec.enabled}=true", "exporter/awaited")
    late = service.kubectl(
        "wait", "--for=jsonpath={.spec.enabled}=false", "exporter/awaited", "--timeout=1s",
        check=False,
    )  # fmt: skip
    assert late.returncode == 1
    service.kubectl("delete", "exporter", "awaited")


def test_wait_for_a_condition_and_for_deletion(service: Service) -> None:
    service.kubectl("wait", "--for=condition=Established", "crd/leases.jumpstarter.dev")
    apply(service, "clients.jumpstarter.dev", "going")
    watching = subprocess.Popen(
        ["kubectl", "wait", "--for=delete", "client/going", "--timeout=20s"],
        env=service.environment,
    )
    time.sleep(0.3)
    service.kubectl("delete", "client", "going")
    assert watching.wait(120) == 0


def test_watch_shows_changes_as_they_happen(service: Service, tmp_path: Path) -> None:
    output = tmp_path / "watch"
    with output.open("w") as out:
        watching = subprocess.Popen(
            ["kubectl", "get", "clients", "-w", "--output-watch-events"],
            stdout=out,
            env=service.environment,
        )
    try:
        eventually(lambda: "default" in output.read_text(), what="the first list")
        apply(service, "clients.jumpstarter.dev", "seen")
        service.kubectl("label", "client", "seen", "a=b")
        service.kubectl("delete", "client", "seen")
        eventually(lambda: "DELETED" in output.read_text(), what="the deletion")
    finally:
        watching.terminate()
        watching.wait()
    events = [line.split()[0] for line in output.read_text().splitlines() if " seen " in line]
    assert events[0] == "ADDED"
    assert "MODIFIED" in events
    assert events[-1] == "DELETED"


def test_selectors_sorting_and_namespaces(service: Service) -> None:
    service.kubectl("create", "namespace", "other")
    for name, team, namespace in (
        ("b", "red", "default"),
        ("a", "red", "default"),
        ("c", "blue", "other"),
    ):
        text = manifest(
            "exporters.jumpstarter.dev", name, labels={"team": team}, namespace=namespace
        )
        service.kubectl("apply", "-f", "-", input=text)

    def names(*arguments: str) -> list[str]:
        found = json.loads(service.kubectl("get", "exporters", *arguments, "-o", "json").stdout)[
            "items"
        ]
        return [item["metadata"]["name"] for item in found]

    assert names("-l", "team=red") == ["a", "b"]
    assert names("-A", "-l", "team in (red,blue)") == ["a", "b", "c"]
    assert names("-A", "-l", "team notin (red),team") == ["c"]
    assert names("-A", "-l", "team!=red,team!=blue", "--field-selector", "metadata.name=c") == []
    assert names("--field-selector", "metadata.name=a") == ["a"]
    assert names("-A", "--field-selector", "metadata.namespace=other") == ["c"]
    table = service.kubectl("get", "exporters", "-A", "--sort-by=.metadata.name").stdout
    assert table.splitlines()[0].startswith("NAMESPACE")
    service.kubectl("delete", "exporters", "-l", "team=red")
    service.kubectl("delete", "namespace", "other")
    assert "NotFound" in service.kubectl("get", "ns", "other", check=False).stderr
    assert names("-A", "-l", "team") == []


def test_long_lists_come_in_pages_of_one_snapshot(service: Service) -> None:
    texts = [manifest("configmaps", f"page-{i:03}", labels={"paged": "yes"}) for i in range(120)]
    service.kubectl("create", "-f", "-", input="---\n".join(texts))
    done = service.kubectl(
        "get", "configmaps", "-l", "paged=yes", "--chunk-size=25", "-o", "name", "-v=6"
    )
    assert len(done.stdout.split()) == 120
    assert len(re.findall(r"GET \S*configmaps\S*limit=25", done.stderr)) >= 5
    service.kubectl("delete", "configmaps", "--all")
    eventually(
        lambda: "page-" not in service.kubectl("get", "configmaps", "-o", "name").stdout,
        what="all gone",
    )


def owned(kind: str, name: str, owner: dict[str, Any]) -> str:
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "blockOwnerDeletion": True,
    }
    return manifest(kind, name, ownerReferences=[reference])


@pytest.mark.parametrize("cascade", ["background", "foreground", "orphan"])
def test_deleting_an_owner_cascades_as_asked(service: Service, cascade: str) -> None:
    apply(service, "exporters.jumpstarter.dev", "owner")
    owner = service.get("exporter", "owner")
    text = owned("configmaps", f"dependent-{cascade}", owner)
    service.kubectl("apply", "-f", "-", input=text)
    service.kubectl("delete", "exporter", "owner", f"--cascade={cascade}")
    names = "get", "configmap", "-o", "name"
    if cascade == "orphan":
        time.sleep(0.5)
        assert f"dependent-{cascade}" in service.kubectl(*names).stdout
        service.kubectl("delete", "configmap", f"dependent-{cascade}")
    else:
        eventually(lambda: f"dependent-{cascade}" not in service.kubectl(*names).stdout)


def test_finalizers_hold_an_object_until_they_are_removed(service: Service) -> None:
    apply(service, "clients.jumpstarter.dev", "held", finalizers=["example.com/hold"])
    service.kubectl("delete", "client", "held", "--wait=false")
    assert field(service, "client", "held", ".metadata.deletionTimestamp")
    service.kubectl(
        "patch", "client", "held", "--type=merge", "-p", '{"metadata":{"finalizers":null}}'
    )
    assert "NotFound" in service.kubectl("get", "client", "held", check=False).stderr


@pytest.mark.parametrize("kind", CUSTOM)
def test_explain_describes_every_field(service: Service, kind: str) -> None:
    version = f"--api-version={KINDS[kind]['apiVersion']}"
    text = service.kubectl("explain", kind.partition(".")[0], version, "--recursive").stdout
    assert f"KIND:       {KINDS[kind]['kind']}" in text or KINDS[kind]["kind"] in text
    assert "metadata" in text
    assert "DESCRIPTION" in text


def test_discovery(service: Service) -> None:
    resources = service.kubectl("api-resources", "--verbs=list,watch", "-o", "name").stdout.split()
    assert set(KINDS) <= set(resources) | {"secrets", "configmaps", "events", "namespaces"}
    versions = service.kubectl("api-versions").stdout.split()
    assert {"v1", JUMPSTARTER, VIRTUAL, "coordination.k8s.io/v1"} <= set(versions)
    assert "Server Version" in service.kubectl("version").stdout
    for path in ("/readyz", "/livez"):
        assert service.kubectl("get", "--raw", path).stdout == "ok"
    assert "bullpen_apiserver_requests_total" in service.kubectl("get", "--raw", "/metrics").stdout


@needs_kubectl(28, "auth whoami")
def test_whoami(service: Service) -> None:
    assert "bullpen:admin" in service.kubectl("auth", "whoami").stdout


def test_can_i(service: Service) -> None:
    assert service.kubectl("auth", "can-i", "delete", "exporters").stdout.startswith("yes")


@needs_kubectl(26, "events command")
def test_events(service: Service) -> None:
    apply(service, "clients.jumpstarter.dev", "eventful")
    eventually(
        lambda: "CredentialCreated" in service.kubectl("events", "--for", "client/eventful").stdout
    )
    service.kubectl("delete", "client", "eventful")


INVALID = [
    pytest.param(
        "leases.jumpstarter.dev",
        {"spec": {"clientRef": {"name": "a"}}},
        "selector",
        id="asks for nothing",
    ),
    pytest.param(
        "exportersets.virtualtarget.jumpstarter.dev",
        {"spec": {"minReplicas": -1}},
        "spec.minReplicas",
        id="a negative floor",
    ),
    pytest.param(
        "exportersets.virtualtarget.jumpstarter.dev",
        {"spec": {"recycleStrategy": "Recycle"}},
        "spec.recycleStrategy",
        id="an unknown strategy",
    ),
    pytest.param(
        "virtualtargetclasses.virtualtarget.jumpstarter.dev",
        {"spec": {"provisioner": ""}},
        "spec.provisioner",
        id="no provisioner",
    ),
    pytest.param(
        "clients.jumpstarter.dev", {"metadata": {"name": "UPPER"}}, "metadata.name", id="a bad name"
    ),
    pytest.param(
        "exporters.jumpstarter.dev",
        {"metadata": {"name": "x", "labels": {"a": "b c"}}},
        "metadata.labels",
        id="a bad label",
    ),
]


@pytest.mark.parametrize(("kind", "change", "named"), INVALID)
def test_an_invalid_object_is_refused_and_the_field_is_named(
    service: Service, kind: str, change: dict[str, Any], named: str
) -> None:
    document = {**KINDS[kind], "metadata": {"name": "wrong"}}
    for key, value in change.items():
        replaces = kind == "leases.jumpstarter.dev" and key == "spec"
        document[key] = value if replaces else {**document.get(key, {}), **value}
    done = service.kubectl(
        "create", "--validate=false", "-f", "-", input=yaml.safe_dump(document), check=False
    )
    assert done.returncode == 1
    assert f'"{document["metadata"]["name"]}" is invalid' in done.stderr
    assert named in done.stderr


def test_a_template_that_its_selector_misses_is_refused(service: Service) -> None:
    kind = "exportersets.virtualtarget.jumpstarter.dev"
    document = yaml.safe_load(manifest(kind, "mismatch"))
    document["spec"]["template"]["metadata"]["labels"] = {"pool": "y"}
    done = service.kubectl("create", "-f", "-", input=yaml.safe_dump(document), check=False)
    assert "spec.template.metadata.labels" in done.stderr


@needs_kubectl(25, "--validate=strict|warn|ignore")
@pytest.mark.parametrize("mode", ["strict", "warn", "ignore"])
def test_unknown_fields_follow_the_mode(service: Service, mode: str) -> None:
    document = yaml.safe_load(manifest("exporters.jumpstarter.dev", f"unknown-{mode}"))
    document["spec"]["colour"] = "red"
    done = service.kubectl(
        "create", f"--validate={mode}", "-f", "-", input=yaml.safe_dump(document), check=False
    )
    if mode == "strict":
        assert done.returncode == 1
        assert 'unknown field "spec.colour"' in done.stderr
        return
    assert done.returncode == 0
    assert ('unknown field "spec.colour"' in done.stderr) == (mode == "warn")
    assert field(service, "exporter", f"unknown-{mode}", ".spec.colour") == "red"
    service.kubectl("delete", "exporter", f"unknown-{mode}")


def test_prune_is_refused_cleanly_or_prunes(service: Service) -> None:
    """Pruning is kubectl's own work on top of list and delete, so it simply works."""
    for name in ("kept", "pruned"):
        text = manifest("clients.jumpstarter.dev", name, labels={"set": "p"})
        service.kubectl("apply", "-f", "-", input=text)
    text = manifest("clients.jumpstarter.dev", "kept", labels={"set": "p"})
    list_flag = "allowlist" if client_version() >= (1, 26) else "whitelist"
    done = service.kubectl(
        "apply", "-f", "-", "--prune", "-l", "set=p",
        f"--prune-{list_flag}=jumpstarter.dev/v1alpha1/Client", input=text, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "pruned" in done.stdout
    service.kubectl("delete", "client", "kept")


def test_dry_run_changes_nothing(service: Service) -> None:
    text = manifest("clients.jumpstarter.dev", "phantom")
    done = service.kubectl("apply", "--dry-run=server", "-f", "-", input=text)
    assert "created (server dry run)" in done.stdout
    assert "NotFound" in service.kubectl("get", "client", "phantom", check=False).stderr


def test_crds_cannot_be_changed_here(service: Service) -> None:
    done = service.kubectl("delete", "crd", "leases.jumpstarter.dev", check=False)
    assert "part of this server" in done.stderr


def test_typed_creates_of_core_kinds_arrive_as_protobuf(service: Service) -> None:
    service.kubectl("create", "secret", "generic", "typed", "--from-literal=user=alice")
    assert field(service, "secret", "typed", ".data.user") == "YWxpY2U="
    service.kubectl("create", "configmap", "typed", "--from-literal=x=y")
    assert field(service, "configmap", "typed", ".data.x") == "y"
    service.kubectl("delete", "secret/typed", "configmap/typed")
