"""``bullpen status``: health and activity of the service."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from bullpen.api import codec
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.lease import Lease
from bullpen.api.paths import Document
from bullpen.api.printing import human_duration
from bullpen.cli import added_columns
from bullpen.cli.added_columns import Leases
from bullpen.cli.connection import Api, resource_named
from bullpen.cli.get import list_all
from bullpen.cli.options import Exit, connected, output
from bullpen.cli.output import echo_document, table
from bullpen.core.exporters.target_state import target_state
from bullpen.core.leases import lifecycle
from bullpen.kit import times


@click.command()
@connected
@output("table", "json", "yaml")
def status(api: Api, output: str) -> int:
    """Show pools, exporters, providers, and active and waiting leases.

    Exits with 8 if the service is not healthy, a pool cannot do what it is asked, an exporter does
    not come back from its last lease, or a provider or host does not answer.
    """
    report = gather(api)
    if output == "table":
        click.echo(text(report, now=datetime.now(UTC)))
    else:
        echo_document(report, output)
    return Exit.OK if report["healthy"] else Exit.UNHEALTHY


def gather(api: Api) -> Document:
    """Everything ``status`` shows, as a document."""
    pools = [_pool(item) for item in _objects(api, "exportersets")]
    lasting = [_lasting_pool(item) for item in _objects(api, "virtualtargetpools")]
    current = _objects(api, "leases", {"labelSelector": Lease.selected})
    known = added_columns.by_name(current)
    exporters = [_exporter(item, known.get) for item in _objects(api, "exporters")]
    providers = [provider(item) for item in _objects(api, "providerconfigs")]
    troubles = (
        ("pool", pools),
        ("virtualtargetpool", lasting),
        ("exporter", exporters),
        ("provider", providers),
    )
    found = (_problem(word, items) for word, items in troubles)
    problem = api.problem() or next(filter(None, found), "")
    leases = [_lease(item) for item in current if not _ended(item)]
    return {
        "healthy": not problem,
        "problem": problem,
        "endpoints": {"apiserver": api.server},
        "pools": pools,
        "lastingPools": lasting,
        "exporters": exporters,
        "providers": providers,
        "leases": [lease for lease in leases if lease["exporter"]],
        "waiting": [lease for lease in leases if not lease["exporter"]],
    }


def _objects(api: Api, word: str, query: dict[str, str] | None = None) -> list[Any]:
    return list_all(api, resource_named(word), None, query)


def _problem(word: str, found: list[Document]) -> str:
    """Which pools or exporters are in trouble, and the cause of the first; or empty."""
    troubled = [item for item in found if item["reason"]]
    if not troubled:
        return ""
    first = troubled[0]
    text = f"{word} {first['namespace']}/{first['name']}: {first['reason']}: {first['message']}"
    if first["since"]:
        text = f"{text}, since {first['since']}"
    others = len(troubled) - 1
    return f"{text}, and {others} more" if others else text


def _condition(found: Document, type_: str, *, status: str = "True") -> Document:
    """A condition with this status; empty if it has another."""
    return next(
        (
            condition
            for condition in found.get("conditions") or ()
            if condition["type"] == type_ and condition["status"] == status
        ),
        {},
    )


def _ended(item: Document) -> bool:
    return bool((item.get("status") or {}).get("ended"))


def _pool(item: Document) -> Document:
    found = item.get("status") or {}
    counts = ("replicas", "readyReplicas", "availableReplicas", "leasedReplicas")
    limits = ("minReplicas", "maxReplicas", "minAvailableReplicas")
    degraded = _condition(found, "Degraded")
    return {
        **_named(item),
        **{key: found.get(key, 0) for key in counts},
        **{key: item["spec"].get(key) for key in limits},
        **_trouble(degraded),
    }


def _lasting_pool(item: Document) -> Document:
    found = item.get("status") or {}
    counts = ("replicas", "readyReplicas", "availableReplicas", "leasedReplicas")
    return {
        **_named(item),
        **{key: found.get(key, 0) for key in counts},
        **_trouble(_condition(found, "ReplicaFailure")),
    }


def _trouble(said: Document) -> Document:
    """Why something is wrong and since when; empty texts if nothing is."""
    return {
        "reason": said.get("reason", ""),
        "message": said.get("message", ""),
        "since": said.get("lastTransitionTime", ""),
    }


def _exporter(item: Document, leases: Leases) -> Document:
    found = item.get("status") or {}
    stuck = _condition(found, "Stuck")
    exporter = codec.decode_or_none(Exporter, item)
    return {
        **_named(item),
        "state": target_state(exporter) if exporter is not None else "",
        "status": found.get("exporterStatus", ""),
        "holder": added_columns.holder(exporter, leases) if exporter is not None else "",
        "ends": _end(added_columns.held(exporter, leases)) if exporter is not None else "",
        "lease": (found.get("leaseRef") or {}).get("name", ""),
        "enabled": item.get("spec", {}).get("enabled", True),
        **_trouble({**stuck, "reason": "Stuck"} if stuck else {}),
    }


def provider(item: Document) -> Document:
    """A ProviderConfig; with the reason if it does not answer, or other settings are to come."""
    found = item.get("status") or {}
    said = (_condition(found, name, status="False") for name in ("Reachable", "SettingsInEffect"))
    # One that was not listed yet has no error.
    trouble = next((each for each in said if each.get("message")), {})
    return {
        **_named(item),
        "provisioner": item["spec"]["provisioner"],
        "instances": found.get("instances", 0),
        **_trouble(trouble),
    }


def _lease(item: Document) -> Document:
    found = item.get("status") or {}
    conditions = found.get("conditions") or [{}]
    return {
        **_named(item),
        "client": item["spec"]["clientRef"]["name"],
        "exporter": (found.get("exporterRef") or {}).get("name", ""),
        "ends": _end(codec.decode_or_none(Lease, item)),
        "reason": conditions[-1].get("reason", ""),
        "message": conditions[-1].get("message", ""),
    }


def _end(lease: Lease | None) -> str:
    """The time at which a lease ends; empty if that is not known."""
    end = lifecycle.expires_at(lease) if lease is not None else None
    return times.text(end) if end is not None else ""


def _named(item: Document) -> Document:
    return {"namespace": item["metadata"]["namespace"], "name": item["metadata"]["name"]}


_SECTIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "Pools",
        "pools",
        (
            *("namespace", "name", "replicas", "readyReplicas", "availableReplicas"),
            *("leasedReplicas", "reason", "since"),
        ),
    ),
    (
        "Lasting pools",
        "lastingPools",
        (
            *("namespace", "name", "replicas", "readyReplicas", "availableReplicas"),
            *("leasedReplicas", "reason", "since"),
        ),
    ),
    (
        "Exporters",
        "exporters",
        ("namespace", "name", "state", "holder", "ends", "enabled", "reason", "since"),
    ),
    (
        "Providers",
        "providers",
        ("namespace", "name", "provisioner", "instances", "message", "since"),
    ),
    ("Leases", "leases", ("namespace", "name", "client", "exporter", "ends")),
    ("Waiting", "waiting", ("namespace", "name", "client", "reason", "message")),
)


_HEADERS = {
    "replicas": "all",
    "readyReplicas": "ready",
    "availableReplicas": "available",
    "leasedReplicas": "leased",
}
"""Where a header is not the name of the field."""


def text(report: Document, *, now: datetime) -> str:
    """The report as a person reads it."""
    health = "ok" if report["healthy"] else f"NOT READY: {report['problem']}"
    lines = [f"Health:      {health}", f"API server:  {report['endpoints']['apiserver']}"]
    for title, key, columns in _SECTIONS:
        rows = report[key]
        lines.append(f"\n{title}: {len(rows) or 'none'}")
        if rows:
            headers = [_HEADERS.get(name, name) for name in columns]
            lines.append(table(headers, [[_shown(row, c, now) for c in columns] for row in rows]))
    return "\n".join(lines)


def _shown(row: Document, column: str, now: datetime) -> object:
    """A cell; times as ages, as kubectl shows them."""
    if column == "since" and row[column]:
        return human_duration(now - times.parse(row[column]))
    if column == "ends" and row[column]:
        return added_columns.relative(times.parse(row[column]), now)
    return row[column]
