"""The audit log of a running lab: what kubectl and jmp did, and who was refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.real_service import Service, eventually, running_service

CLAIMED = "bullpen.jumpstarter.dev/claimed"

pytestmark = pytest.mark.real


def audited(service: Service, *arguments: str) -> list[dict[str, Any]]:
    shown = service.bullpen("audit", "-o", "json", *arguments).stdout
    return [json.loads(line) for line in shown.splitlines()]


def outcomes(events: list[dict[str, Any]]) -> list[tuple[str, str, int]]:
    return [
        (e["verb"], e["objectRef"].get("name", ""), e["responseStatus"]["code"]) for e in events
    ]


def test_what_a_client_does_with_jmp_is_in_the_audit_log(service: Service) -> None:
    client = service.create_client("auditor")
    exporter = service.create_exporter("audited", {"board": "audited"})
    with service.exporter(exporter):
        service.jmp(
            "shell", "--client-config", str(client), "-l", "board=audited", "--", "j", "power", "on"
        )
    eventually(
        lambda: "delete" in {e["verb"] for e in audited(service, "--who", "*:auditor:*")},
        what="the release being recorded",
    )
    events = audited(service, "--who", "internal:client:default:auditor:*", "--what", "leases")
    (name,) = {e["objectRef"]["name"] for e in events}
    assert outcomes(events)[0] == ("create", name, 200)
    assert ("connect", name, 200) in outcomes(events)
    assert outcomes(events)[-1] == ("delete", name, 200)
    for event in events:
        assert event["objectRef"]["namespace"] == "default"
        assert event["sourceIPs"] == ["127.0.0.1"]
        assert event["userAgent"]
    registered = audited(service, "--who", "internal:exporter:default:audited:*")
    assert registered[0]["objectRef"]["subresource"] == "status"


def test_a_client_that_is_refused_is_in_the_audit_log_without_its_token(service: Service) -> None:
    path = service.create_client("refused")
    config = yaml.safe_load(path.read_text())
    token = config["token"]
    config["metadata"]["name"] = "somebody-else"
    path.write_text(yaml.safe_dump(config))
    done = service.jmp("get", "leases", "--client-config", str(path), check=False)
    assert done.returncode

    def refusals() -> list[dict[str, Any]]:
        return [
            e
            for e in audited(service, "--who", "system:anonymous")
            if "somebody-else"
            in e.get("annotations", {}).get("bullpen.jumpstarter.dev/claimed", "")
        ]

    eventually(refusals, what="the refusal being recorded")
    assert all(e["responseStatus"]["code"] in (401, 403, 404) for e in refusals())
    text = "".join(p.read_text() for p in (service.data / "audit").iterdir())
    assert token not in text


def test_the_log_goes_on_after_a_restart(fresh_service: Service) -> None:
    service = fresh_service
    service.kubectl("create", "configmap", "before")
    service.stop()
    service.start()
    service.kubectl("create", "configmap", "after")
    eventually(
        lambda: any(e["verb"] == "create" for e in audited(service, "--what", "configmaps/after")),
        what="the event being written",
    )
    events = audited(service, "--what", "configmaps/*")
    named = [e["objectRef"]["name"] for e in events if e["verb"] == "create"]
    assert named == ["before", "after"]


def test_commands_that_change_the_data_directory_are_in_the_audit_log(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: given}\n")
    with running_service(tmp_path, "-f", str(manifest)) as service:
        service.kubectl("create", "configmap", "later")
        assert service.stop() == 0
        service.bullpen("restore", "--data", str(service.data))
        events = audited(service, "--who", "local:*")
        assert outcomes(events)[0] == ("patch", "given", 200)
        (restored,) = [e for e in events if e["verb"] == "restore"]
        assert restored["objectRef"]["name"].startswith("state-")
        service.start()
