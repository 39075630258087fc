"""The processes: controller and provisioners with a standby each, routers with stable names,
one dashboard.

A standby is Ready. The leader labels its own Pod, and its Service selects that label. In a
rollout the new replicas first start and stand by, then the old ones are stopped together: the
leadership changes once.
"""

from __future__ import annotations

from typing import Any

from bullpen.api.paths import Document
from bullpen.controllers import authority
from bullpen.install.values import (
    API,
    DASHBOARD,
    GRPC,
    HTTP,
    LOGIN,
    ROUTER,
    SCALER,
    Values,
    label,
    name_of,
    selector,
)
from bullpen.placements.pod.rendering import container_security, pod_security

CONFIG = "/etc/bullpen/config.yaml"
TLS = "/etc/bullpen-tls"
TLS_SECRET = "bullpen-tls"
SCALER_CA = "/etc/bullpen-scaler"
SERVICE_CA = "/etc/bullpen-ca"
OIDC = "/etc/bullpen-oidc"

STOP_SECONDS = 30
"""Time from the stop signal to the kill."""

NEW_FIRST: Document = {
    "type": "RollingUpdate",
    "rollingUpdate": {"maxUnavailable": 0, "maxSurge": "100%"},
}


def config(values: Values) -> list[Document]:
    """The settings file. It is JSON, which is valid YAML, and deterministic."""
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": label(values, "bullpen-config", "controller"),
            "data": {"config.yaml": values.as_json("config")},
        }
    ]


def controller(values: Values) -> list[Document]:
    container = _container(
        values,
        "controller",
        "controller",
        env=[
            _variable("BULLPEN_ENDPOINT", controller_endpoint(values)),
            _variable("BULLPEN_CONFIG", CONFIG),
            _named_by("BULLPEN_POD", "metadata.name"),
            _variable(
                "BULLPEN_SCALER_CLIENT_CA",
                values.either("externalScaler.clientCASecret", f"{SCALER_CA}/ca.crt", ""),
            ),
            _variable("BULLPEN_API_PORT", values.either("apiService.enabled", str(API), "-1")),
            *_tracing(values),
            *_tls(values),
        ],
        ports={"grpc": GRPC, "scaler": SCALER, "login": LOGIN, "api": API},
    )
    container["volumeMounts"].append({"name": "scaler", "mountPath": SCALER_CA, "readOnly": True})
    deployment = _deployment(
        values,
        "controller",
        "controller",
        container,
        replicas=values.get("controller.replicas"),
        grace=STOP_SECONDS,
    )
    secret = _or(values, "externalScaler.clientCASecret", "bullpen-scaler-ca")
    deployment["spec"]["template"]["spec"]["volumes"].append(_secret("scaler", secret))
    return [deployment]


def provisioner(values: Values) -> list[Document]:
    name = f"provisioner-{values.get('.name')}"
    container = _container(
        values,
        "provisioner",
        "provisioner",
        env=[
            _variable("BULLPEN_PROVISIONER", values.get(".provisioner")),
            _variable("BULLPEN_EXPORTER_IMAGE", _image(values)),
            _variable("BULLPEN_RUNTIME_IMAGES", f"qemu={values.get('runtimeImages.qemu')}"),
            # Other namespaces have no such service account.
            _variable(
                "BULLPEN_POD_SERVICE_ACCOUNT", values.either("allNamespaces", "", name_of("target"))
            ),
            _variable("BULLPEN_CONFIG", CONFIG),
        ],
        ports={},
    )
    container["image"] = values.either(".image", values.get(".image"), _image(values))
    return [
        _deployment(
            values,
            name,
            "provisioner",
            container,
            replicas=values.get(".replicas"),
            grace=STOP_SECONDS,
        )
    ]


def dashboard(values: Values) -> list[Document]:
    """One replica: who is signed in is known to one process."""
    container = _container(
        values,
        "dashboard",
        "dashboard serve",
        env=[
            _variable("BULLPEN_ENDPOINT", controller_endpoint(values)),
            _variable("BULLPEN_SERVICE_CA", f"{SERVICE_CA}/{authority.KEY}"),
            _variable("BULLPEN_CONFIG", CONFIG),
            *(
                _variable(
                    f"BULLPEN_TLS_{name}",
                    values.either(
                        "dashboard.tlsSecret",
                        f"{TLS}/{file}",
                        values.either("certManager.enabled", f"{TLS}/{file}", ""),
                    ),
                )
                for name, file in (("CERT", "tls.crt"), ("KEY", "tls.key"))
            ),
        ],
        ports={"https": DASHBOARD},
    )
    container["image"] = _or(values, "dashboard.image", _image(values))
    container["volumeMounts"] += [
        {"name": "service-ca", "mountPath": SERVICE_CA, "readOnly": True},
        {"name": "oidc", "mountPath": OIDC, "readOnly": True},
    ]
    deployment = _deployment(
        values, "dashboard", "dashboard", container, replicas=1, grace=STOP_SECONDS
    )
    spec = deployment["spec"]["template"]["spec"]
    spec["volumes"] = [
        *(volume for volume in spec["volumes"] if volume["name"] != "tls"),
        _secret("tls", _or(values, "dashboard.tlsSecret", TLS_SECRET)),
        _secret("oidc", _or(values, "dashboard.oidcSecret", "bullpen-oidc")),
        # Written by the controller; the Pod waits for it.
        {"name": "service-ca", "configMap": {"name": authority.NAME}},
    ]
    return [deployment]


def _secret(volume: str, name: Any) -> Document:
    return {"name": volume, "secret": {"secretName": name, "optional": True}}


def router(values: Values) -> list[Document]:
    container = _container(
        values,
        "router",
        "router",
        env=[
            _named_by("BULLPEN_ROUTER_NAME", "metadata.name"),
            _variable("BULLPEN_PORT", str(ROUTER)),
            _variable("BULLPEN_ENDPOINT", router_endpoint(values)),
            _variable("BULLPEN_DRAIN", values.as_json("router.drainSeconds")),
            *_tracing(values),
            *_tls(values),
        ],
        ports={"router": ROUTER},
    )
    stateful: Document = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": label(values, name_of("router"), "router"),
        "spec": {
            "serviceName": name_of("router"),
            "replicas": values.get("router.replicas"),
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": selector("router")},
            "template": _pod(
                values, "router", container, grace=values.plus("router.drainSeconds", STOP_SECONDS)
            ),
        },
    }
    return [stateful]


def _tracing(values: Values) -> list[Document]:
    return [
        _variable("BULLPEN_TRACING_ENDPOINT", values.get("tracing.endpoint")),
        _variable("BULLPEN_TRACING_RATIO", values.as_json("tracing.ratio")),
    ]


def controller_endpoint(values: Values) -> Any:
    """The controller's address for clients and exporters, unless one was configured."""
    inside = f"{name_of('controller')}.{values.namespace}.svc:{GRPC}"
    return _or(values, "controller.endpoint", inside)


def router_endpoint(values: Values) -> Any:
    """Each router has its own address: both sides of a stream must use the same router."""
    service = f"{name_of('router')}.{values.namespace}.svc:{ROUTER}"
    return _or(values, "router.endpoint", f"$(BULLPEN_ROUTER_NAME).{service}")


def _or(values: Values, path: str, otherwise: str) -> Any:
    return values.either(path, values.get(path), otherwise)


def _deployment(
    values: Values, name: str, process: str, container: Document, *, replicas: Any, grace: Any
) -> Document:
    labels = {**selector(process), "bullpen.dev/name": name}
    template = _pod(values, process, container, labels=labels, grace=grace)
    template["spec"]["serviceAccountName"] = name_of(name)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": label(values, name_of(name), process),
        "spec": {
            "replicas": replicas,
            "strategy": NEW_FIRST,
            "selector": {"matchLabels": labels},
            "template": template,
        },
    }


def _pod(
    values: Values,
    process: str,
    container: Document,
    *,
    labels: Document | None = None,
    grace: Any,
) -> Document:
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels or selector(process)},
    }
    return {
        "metadata": {"labels": labels or selector(process)},
        "spec": {
            "serviceAccountName": name_of(process),
            "automountServiceAccountToken": True,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": grace,
            "securityContext": pod_security(),
            "nodeSelector": values.get(f"{process}.nodeSelector"),
            "tolerations": values.get(f"{process}.tolerations"),
            "affinity": values.get(f"{process}.affinity"),
            "topologySpreadConstraints": [spread],
            "containers": [container],
            "volumes": [
                {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
                {"name": "config", "configMap": {"name": "bullpen-config"}},
                {"name": "tls", "secret": {"secretName": TLS_SECRET, "optional": True}},
            ],
        },
    }


def _container(
    values: Values, process: str, command: str, *, env: list[Document], ports: dict[str, int]
) -> Document:
    watched = values.either("allNamespaces", "", values.namespace)
    return {
        "name": process,
        "image": _image(values),
        "imagePullPolicy": values.get("image.pullPolicy"),
        "args": command.split(),
        "env": [
            _variable("BULLPEN_NAMESPACE", values.namespace),
            _variable("BULLPEN_WATCH_NAMESPACE", watched),
            *env,
        ],
        "ports": [
            {"name": name, "containerPort": port} for name, port in {"http": HTTP, **ports}.items()
        ],
        "livenessProbe": {**_probe("/healthz"), "periodSeconds": 10, "failureThreshold": 6},
        "readinessProbe": {**_probe("/readyz"), "periodSeconds": 1, "failureThreshold": 2},
        "resources": values.get(f"{process}.resources"),
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "config", "mountPath": "/etc/bullpen", "readOnly": True},
            {"name": "tls", "mountPath": TLS, "readOnly": True},
        ],
    }


def _image(values: Values) -> str:
    return f"{values.get('image.repository')}:{values.get('image.tag')}"


def _variable(name: str, value: Any) -> Document:
    return {"name": name, "value": value}


def _named_by(name: str, path: str) -> Document:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _tls(values: Values) -> list[Document]:
    """A certificate of cert-manager; without cert-manager, the processes issue their own."""
    files = {"CERT": "tls.crt", "KEY": "tls.key", "CA": "ca.crt"}
    return [
        _variable(f"BULLPEN_TLS_{name}", values.either("certManager.enabled", f"{TLS}/{file}", ""))
        for name, file in files.items()
    ]


def _probe(path: str) -> Document:
    return {"httpGet": {"path": path, "port": "http"}, "timeoutSeconds": 2}
