"""The Helm chart, written from the parts. ``python -m bullpen.install.chart DIRECTORY``."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

from bullpen.api.crds import crds
from bullpen.api.paths import Document
from bullpen.install.parts import PARTS, Part, of_item
from bullpen.install.values import DEFAULTS, VERSION, Written, as_template, expression, schema

GENERATED = "# Written by `make chart` from src/bullpen/install/; do not edit.\n"

ABOUT: Document = {
    "apiVersion": "v2",
    "name": "bullpen",
    "description": "Test targets, physical or virtual, for people and pipelines.",
    "type": "application",
    "version": VERSION,
    "appVersion": VERSION,
    "kubeVersion": ">=1.30.0-0",
}

COMMENTS = {
    "image": "Image of the controller, routers, provisioners and exporters.",
    "runtimeImages": "Images in which targets run, by runtime.",
    "imagePullSecrets": "A list of objects with a name.",
    "allNamespaces": "Manage labs in every namespace, or only in the namespace of the release.",
    "config": "Settings of the service; docs/reference/settings.md.",
    "tracing": "endpoint is an OpenTelemetry collector for traces of leases; empty: none.",
    "controller": "endpoint is host:port as clients and exporters reach it; empty for inside only.",
    "router": "endpoint may contain $(BULLPEN_ROUTER_NAME), such as bullpen-router-0.",
    "dashboard": "image replaces the image of its process. tlsSecret is a Secret with tls.crt "
    "and tls.key; without one it uses cert-manager's certificate, or makes one. oidcSecret is a "
    "Secret that is mounted at /etc/bullpen-oidc, for oidc[].dashboard.clientSecretFile.",
    "provisioners": "Each gets a Deployment and a service account of its own. image replaces the "
    "image of its process; one without pods runs nothing in the cluster.",
    "provisioner": "Settings of all provisioners.",
    "apiService": "Serve removal of members by name; one installation of a cluster can.",
    "externalScaler": "clientCASecret is a Secret with the ca.crt of KEDA's client certificates; "
    "empty for no external scaler.",
    "certManager": "Use cert-manager for TLS; otherwise the processes create their own authority.",
    "networkPolicies": "targetEgress limits connections from targets; the default allows all.",
    "podDisruptionBudgets": "For the controllers and the routers.",
    "serviceMonitor": "For Prometheus' operator.",
}

NOTES = """\
The controller is at {{ $.Values.controller.endpoint | default (printf "bullpen-controller.%s.svc:8082" .Release.Namespace) }}.

  kubectl -n {{ .Release.Namespace }} get pods
  kubectl -n {{ .Release.Namespace }} apply -f examples/uboot-pool.yaml
  jmp admin create client me -n {{ .Release.Namespace }} --save
{{- if $.Values.dashboard.enabled }}

The dashboard is at https://localhost:8443 after

  kubectl -n {{ .Release.Namespace }} port-forward service/bullpen-dashboard 8443:443
{{- end }}
"""  # noqa: E501


def files() -> Iterator[tuple[str, str]]:
    """Every file of the chart, by its path."""
    yield "Chart.yaml", _dump(ABOUT)
    yield "values.yaml", _values()
    yield "values.schema.json", json.dumps(schema(), indent=2) + "\n"
    yield "templates/NOTES.txt", NOTES
    for definition in crds():
        yield f"crds/{definition['metadata']['name']}.yaml", _dump(definition)
    for part in PARTS:
        yield f"templates/{part.name}.yaml", template(part)


def template(part: Part) -> str:
    """One part as Helm reads it."""
    text = "".join(f"---\n{_dump(document)}" for document in part.build(Written()))
    opening, closing = [], []
    general = [condition for condition in part.when if not of_item(condition)]
    if general:
        opening.append(f"{{{{- if and {' '.join(map(_condition, general))} }}}}")
        closing.append("{{- end }}")
    if part.each:
        number = isinstance(_default(part.each), int)
        each = expression(part.each)
        opening.append(f"{{{{- range {f'until (int {each})' if number else each} }}}}")
        closing.append("{{- end }}")
    if own := [condition for condition in part.when if of_item(condition)]:
        opening.append(f"{{{{- if and {' '.join(map(_condition, own))} }}}}")
        closing.append("{{- end }}")
    lines = (*opening, as_template(text).rstrip(), *closing)
    return GENERATED + "\n".join(lines) + "\n"


def _condition(given: str) -> str:
    found = expression(given.removeprefix("!"))
    return f"(not {found})" if given.startswith("!") else found


def _default(path: str) -> object:
    found: object = DEFAULTS
    for name in path.split("."):
        assert isinstance(found, dict)
        found = found[name]
    return found


def _values() -> str:
    return GENERATED + "\n".join(
        f"# {COMMENTS[name]}\n{_dump({name: value})}" for name, value in DEFAULTS.items()
    )


def _dump(document: object) -> str:
    # A mark that was wrapped over two lines would not be found again.
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=1_000_000)
    return text


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


def write(directory: Path) -> None:
    """Write the chart to ``directory``, and remove everything else in it."""
    shutil.rmtree(directory, ignore_errors=True)
    for name, content in files():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
