"""Options of the processes that make up the service in a cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from bullpen.app.cluster_process import JoinSettings
    from bullpen.app.tracing import TracingSettings
    from bullpen.datadir.certificates import TlsFiles


F = TypeVar("F", bound=Callable[..., Any])

EVERYWHERE = "0.0.0.0"
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)

_JOINING = (
    click.option(
        "--kubeconfig",
        type=FILE,
        envvar="BULLPEN_KUBECONFIG",
        help="Kubeconfig of the cluster"
        " [default: $KUBECONFIG, else the Pod's service account, else ~/.kube/config].",
    ),
    click.option(
        "--context", default="", envvar="BULLPEN_CONTEXT", help="Context in the kubeconfig."
    ),
    click.option(
        "--namespace",
        default="",
        envvar="BULLPEN_NAMESPACE",
        help="Namespace of keys and coordination Leases [default: that of the Pod or context].",
    ),
    click.option(
        "--watch-namespace",
        default="",
        envvar="BULLPEN_WATCH_NAMESPACE",
        help="The only namespace to manage [default: all].",
    ),
    click.option(
        "--listen",
        default="",
        envvar="BULLPEN_LISTEN",
        help=f"Address to listen on [default: {EVERYWHERE} in a cluster].",
    ),
    click.option(
        "--health-port",
        default=8080,
        show_default=True,
        envvar="BULLPEN_HEALTH_PORT",
        type=click.IntRange(-1, 65535),
        help="Port of /healthz, /readyz and /metrics; -1 disables it.",
    ),
    click.option("-v", "--verbose", is_flag=True, envvar="BULLPEN_VERBOSE", help="Log more."),
)

_TLS = (
    click.option("--tls-cert", type=FILE, envvar="BULLPEN_TLS_CERT", help="Server certificate."),
    click.option("--tls-key", type=FILE, envvar="BULLPEN_TLS_KEY", help="Its private key file."),
    click.option(
        "--tls-ca", type=FILE, envvar="BULLPEN_TLS_CA", help="CA certificate for clients."
    ),
)

config_option = click.option(
    "--config",
    type=FILE,
    envvar="BULLPEN_CONFIG",
    help="Settings file; see docs/reference/settings.md.",
)


_TRACING = (
    click.option(
        "--tracing-endpoint",
        default="",
        envvar="BULLPEN_TRACING_ENDPOINT",
        metavar="URL",
        help="OpenTelemetry collector for traces of leases, OTLP over HTTP [default: no traces].",
    ),
    click.option(
        "--tracing-ratio",
        default=1.0,
        show_default=True,
        envvar="BULLPEN_TRACING_RATIO",
        type=click.FloatRange(0, 1),
        help="Share of the leases that are traced.",
    ),
)


def traced(function: F) -> F:
    """Options for traces of leases."""
    return _with(_TRACING, function)


def tracing_from(tracing_endpoint: str, tracing_ratio: float) -> TracingSettings:
    """Convert the options of ``traced``."""
    from bullpen.app.tracing import TracingSettings

    if tracing_endpoint and not tracing_endpoint.startswith(("http://", "https://")):
        raise click.UsageError("--tracing-endpoint must begin with http:// or https://")
    return TracingSettings(endpoint=tracing_endpoint, ratio=tracing_ratio)


def joining(function: F) -> F:
    """The options of every process of a cluster."""
    return _with(_JOINING, function)


def served_over_tls(function: F) -> F:
    """Options for an external certificate; without one the service issues its own."""
    return _with(_TLS, function)


def _with(options: tuple[Callable[[Any], Any], ...], function: F) -> F:
    for option in reversed(options):
        function = option(function)
    return function


def settings_from(
    kubeconfig: Path | None,
    context: str,
    namespace: str,
    watch_namespace: str,
    listen: str,
    health_port: int,
) -> JoinSettings:
    """Convert the options of ``joining`` to settings."""
    from bullpen.app.cluster_process import JoinSettings

    return JoinSettings(
        kubeconfig=kubeconfig,
        context=context,
        namespace=namespace,
        watch_namespace=watch_namespace,
        listen=listen or EVERYWHERE,
        health_port=health_port,
    )


def tls_from(tls_cert: Path | None, tls_key: Path | None, tls_ca: Path | None) -> TlsFiles | None:
    """Convert the options of ``served_over_tls``: all of them or none."""
    from bullpen.datadir.certificates import TlsFiles

    if tls_cert and tls_key and tls_ca:
        return TlsFiles(certificate=tls_cert, key=tls_key, ca=tls_ca)
    if tls_cert or tls_key or tls_ca:
        raise click.UsageError("--tls-cert, --tls-key and --tls-ca must be given together")
    return None
