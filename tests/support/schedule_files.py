"""Files for ``bullpen schedule``, and the command as a function of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner

from bullpen.api import yaml
from bullpen.api.paths import Document
from bullpen.cli.schedule import schedule
from bullpen.cli.schedule_lab import TIME

LAB, DEVICE = "jumpstarter.dev/v1alpha1", "device.jumpstarter.dev/v1alpha1"
NOW = "2026-01-01T08:00:00Z"


def made(api_version: str, kind: str, name: str, spec: Document, **more: Any) -> Document:
    meta: Document = {"name": name, "labels": more.pop("labels", {})}
    if kind != "DeviceClass":
        meta["namespace"] = "default"
    return {"apiVersion": api_version, "kind": kind, "metadata": meta, "spec": spec, **more}


def exporter(name: str, **labels: str) -> Document:
    conditions = [
        {
            "type": "Registered",
            "status": "True",
            "reason": "Test",
            "message": "",
            "lastTransitionTime": NOW,
        }
    ]
    return made(LAB, "Exporter", name, {}, labels=labels, status={"conditions": conditions})


def lease(name: str, held: str, hours: int) -> Document:
    spec = {"clientRef": {"name": "bob"}, "selector": {}, "duration": f"{hours}h"}
    spec["exporterRef"] = {"name": held}
    return made(LAB, "Lease", name, spec, status={"exporterRef": {"name": held}, "beginTime": NOW})


def claim(*requests: Document, **spec: Any) -> Document:
    wanted = {"clientRef": {"name": "alice"}, "duration": "1h", "requests": list(requests)}
    return made(DEVICE, "DeviceClaim", "bench", {**wanted, **spec})


def written(path: Path, *documents: Document, at: str = "") -> Path:
    meta = {"annotations": {TIME: at}} if at else {}
    content = {"apiVersion": "v1", "kind": "List", "metadata": meta, "items": list(documents)}
    path.write_text(yaml.dump(content))
    return path


def ask(inventory: Path, *documents: Document, words: tuple[str, ...] = ()) -> tuple[int, str]:
    """The exit code and what was printed."""
    path = written(inventory.parent / "claims.yaml", *documents)
    return run("-f", str(path), "--inventory", str(inventory), *words)


def answer(inventory: Path, asked: Document, *words: str) -> tuple[int, Document]:
    """The exit code, and what is answered for one claim."""
    code, said = ask(inventory, asked, words=("-o", "json", *words))
    (row,) = json.loads(said)["claims"]
    return code, row


def why_not(inventory: Path, asked: Document, device: str) -> str:
    path = written(inventory.parent / "claims.yaml", asked)
    name = asked["metadata"]["name"]
    code, said = run("why-not", name, device, "-f", str(path), "--inventory", str(inventory))
    assert code == 0, said
    return said.rstrip("\n")


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(schedule, list(words), standalone_mode=False)
    if isinstance(result.exception, click.ClickException):
        return result.exception.exit_code, result.exception.format_message()
    assert result.exception is None, result.exception
    return int(result.return_value or 0), result.output
