"""Helm itself, from a package that carries it, in a process of its own.

Its library brings a Go runtime along, which does not go well with a process that forks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "chart"
SECONDS_MAX = 60

_RENDER = """\
import json, sys
from helm_python import Chart
chart = Chart.load(sys.argv[1])
namespace, values = json.loads(sys.argv[2])
print(json.dumps(chart.render(values, name="lab", namespace=namespace)))
"""

_CHECK = """\
import json, sys
from helm_python import Chart
from helm_python.errors import HelmError
try:
    Chart.load(sys.argv[1]).validate_schema(json.loads(sys.argv[2]))
    print(json.dumps(""))
except HelmError as error:
    print(json.dumps(str(error)))
"""

_LINT = """\
import json, sys
from helm_python import lint
print(json.dumps(lint(sys.argv[1], strict=True, kube_version="v1.30.0")))
"""


def rendered(values: dict[str, Any], *, namespace: str) -> list[dict[str, Any]]:
    """Every object Helm would install."""
    files: dict[str, str] = _run(_RENDER, json.dumps((namespace, values)))
    return [
        document
        for name, text in files.items()
        if name.endswith(".yaml")
        for document in yaml.safe_load_all(text)
        if document
    ]


def refusal(values: dict[str, Any]) -> str:
    """What Helm has against these values."""
    return str(_run(_CHECK, json.dumps(values)))


def linted() -> Any:
    """What Helm has against the chart."""
    return _run(_LINT)


def _run(script: str, *arguments: str) -> Any:
    command = [sys.executable, "-c", script, str(CHART), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
