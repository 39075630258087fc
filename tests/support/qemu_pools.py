"""Pools of U-Boot boards on real QEMU, and ways to look at them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

from support.real_service import BIN, Service, eventually

EXAMPLES = Path(__file__).parents[2] / "examples"
CLASS, SET = (
    dict(document) for document in yaml.safe_load_all((EXAMPLES / "uboot-pool.yaml").read_text())
)
READY_SECONDS = 180.0


def apply_class(service: Service, name: str, *, parameters: Any = None, **spec: Any) -> None:
    """A class like the example's, with these parameters over its own."""
    merged = {**CLASS["spec"]["parameters"], **(parameters or {})}
    document = {
        **CLASS,
        "metadata": {"name": name},
        "spec": {**CLASS["spec"], **spec, "parameters": merged},
    }
    service.kubectl("apply", "-f", "-", input=yaml.safe_dump(document))


DRIVERS = SET["spec"]["template"]["spec"]["drivers"]


def apply_set(service: Service, name: str, *, drivers: Any = DRIVERS, **spec: Any) -> None:
    """A pool of U-Boot boards of its own label."""
    document = {
        **SET,
        "metadata": {"name": name},
        "spec": {
            **SET["spec"],
            "minAvailableReplicas": 0,
            "scaleDownCooldown": "1s",
            **spec,
            "selector": {"matchLabels": {"board": name}},
            "template": {
                "metadata": {"labels": {"board": name}},
                "spec": {"drivers": drivers},
            },
        },
    }
    service.kubectl("apply", "-f", "-", input=yaml.safe_dump(document))


def status(service: Service, name: str) -> dict[str, Any]:
    found: Any = service.get("exporterset", name)
    return dict(found.get("status") or {})


def until(service: Service, name: str, *, seconds: float = READY_SECONDS, **counts: int) -> None:
    """Wait until the set's counts are these."""

    def done() -> bool:
        found = status(service, name)
        return all(found.get(key, 0) == value for key, value in counts.items())

    eventually(done, seconds=seconds, what=f"{name} having {counts}")


def condition(service: Service, name: str, kind: str) -> dict[str, Any]:
    found = [c for c in status(service, name).get("conditions", ()) if c["type"] == kind]
    return found[0] if found else {}


def shell(service: Service, name: str, *command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            str(BIN / "jmp"), "shell", "--client-config",
            str(service.data / "clients" / "default.yaml"), "-l", f"board={name}", "--", *command,
        ],
        env=service.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip


def directories(service: Service) -> list[str]:
    path = service.data / "instances"
    return sorted(p.name for p in path.iterdir() if p.is_dir()) if path.exists() else []


def names(service: Service, name: str) -> list[str]:
    found: Any = service.get("exporters", labels=f"board={name}")["items"]
    return sorted(item["metadata"]["name"] for item in found)
