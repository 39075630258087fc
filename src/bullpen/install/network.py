"""Network access to the processes: Services, policies, budgets, certificates."""

from __future__ import annotations

from bullpen.api.kinds.virtualtargetpool import VirtualTargetPool
from bullpen.api.paths import Document
from bullpen.api.pod import LEADER, MANAGED_BY, MANAGER
from bullpen.api.resources import RESOURCES
from bullpen.apiserver.routes import SUBRESOURCES
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
from bullpen.install.workloads import TLS_SECRET

CERTIFICATES = "cert-manager.io/v1"


def services(values: Values) -> list[Document]:
    """The controller's leader, the routers by name, and every process with metrics."""
    controller = _service(
        values, "controller", {"grpc": GRPC, "scaler": SCALER, "login": LOGIN, "api": API}
    )
    controller["spec"]["selector"] |= {LEADER: name_of("controller")}
    controller["metadata"]["annotations"] = values.get("controller.service.annotations")
    controller["spec"]["type"] = values.get("controller.service.type")
    router = _service(values, "router", {"router": ROUTER})
    router["spec"] |= {"clusterIP": "None", "publishNotReadyAddresses": True}
    return [controller, router]


def dashboard_service(values: Values) -> list[Document]:
    """The dashboard, at the usual port of HTTPS."""
    service = _service(values, "dashboard", {"https": DASHBOARD})
    service["metadata"]["annotations"] = values.get("dashboard.service.annotations")
    service["spec"]["type"] = values.get("dashboard.service.type")
    (port,) = service["spec"]["ports"]
    port["port"] = 443
    return [service]


def dashboard_policy(values: Values) -> list[Document]:
    return [_reachable_at(values, "dashboard", (HTTP, DASHBOARD))]


def api_service(values: Values) -> list[Document]:
    """Lets the cluster's API server pass removals by name on to the controller that leads.

    The controller writes its ``caBundle``.
    """
    resource = RESOURCES.of(VirtualTargetPool)
    group = f"{SUBRESOURCES}{resource.group}"
    name = f"{resource.version}.{group}"
    service = {"name": name_of("controller"), "namespace": values.namespace, "port": API}
    return [
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": label(values, name, "controller", namespaced=False),
            "spec": {
                "group": group,
                "version": resource.version,
                "groupPriorityMinimum": 1000,
                "versionPriority": 15,
                "service": service,
            },
        }
    ]


def replica_services(values: Values) -> list[Document]:
    """The external Service of one router."""
    name = f"{name_of('router')}-{values.get('.')}"
    service = _service(values, "router", {"router": ROUTER})
    service["metadata"] = {
        **label(values, name, "router"),
        "annotations": values.get("router.replicaServices.annotations"),
    }
    service["spec"] |= {
        "type": values.get("router.replicaServices.type"),
        "selector": {**selector("router"), "statefulset.kubernetes.io/pod-name": name},
    }
    return [service]


def _service(values: Values, process: str, ports: dict[str, int]) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": label(values, name_of(process), process),
        "spec": {
            "selector": selector(process),
            "ports": [
                {"name": name, "port": port, "targetPort": name} for name, port in ports.items()
            ],
        },
    }


def policies(values: Values) -> list[Document]:
    """Each process is reachable only at its ports; a target is not reachable at all."""
    ports = {
        "controller": (HTTP, GRPC, SCALER, LOGIN, API),
        "router": (HTTP, ROUTER),
        "provisioner": (HTTP,),
    }
    found = [_reachable_at(values, process, allowed) for process, allowed in ports.items()]
    target = {
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [],
        "egress": values.get("networkPolicies.targetEgress"),
    }
    return [*found, _policy(values, "target", {MANAGED_BY: MANAGER}, target)]


def _reachable_at(values: Values, process: str, ports: tuple[int, ...]) -> Document:
    """A process accepts connections at these ports only."""
    rules = {
        "policyTypes": ["Ingress"],
        "ingress": [{"ports": [{"protocol": "TCP", "port": port} for port in ports]}],
    }
    return _policy(values, process, selector(process), rules)


def _policy(values: Values, name: str, labels: Document, rules: Document) -> Document:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": label(values, name_of(name), name),
        "spec": {"podSelector": {"matchLabels": labels}, **rules},
    }


def budgets(values: Values) -> list[Document]:
    """Routers carry streams, and a leader needs a standby: one at a time may be evicted."""
    return [
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": label(values, name_of(process), process),
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": selector(process)}},
        }
        for process in ("controller", "router")
    ]


def own_issuer(values: Values) -> list[Document]:
    """Our own CA, managed by cert-manager."""
    return [
        _certificate_object(values, "Issuer", "bullpen-selfsigned", {"selfSigned": {}}),
        _certificate_object(
            values,
            "Certificate",
            "bullpen-ca",
            {
                "isCA": True,
                "commonName": "Bullpen CA",
                "duration": "87600h",
                "privateKey": {"algorithm": "ECDSA", "size": 256},
                "secretName": "bullpen-cert-manager-ca",
                "issuerRef": {"kind": "Issuer", "name": "bullpen-selfsigned"},
            },
        ),
        _certificate_object(
            values, "Issuer", "bullpen-ca", {"ca": {"secretName": "bullpen-cert-manager-ca"}}
        ),
        _certificate(values, {"kind": "Issuer", "name": "bullpen-ca"}),
    ]


def given_issuer(values: Values) -> list[Document]:
    """A certificate from an existing issuer."""
    return [_certificate(values, values.get("certManager.issuerRef"))]


def _certificate(values: Values, issuer: object) -> Document:
    inside = f"{values.namespace}.svc"
    names = (
        f"{name_of('controller')}.{inside}",
        f"*.{name_of('router')}.{inside}",
        f"{name_of('dashboard')}.{inside}",
    )
    spec = {
        "secretName": TLS_SECRET,
        "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"},
        "dnsNames": values.after("certManager.dnsNames", names),
        "issuerRef": issuer,
    }
    return _certificate_object(values, "Certificate", TLS_SECRET, spec)


def _certificate_object(values: Values, kind: str, name: str, spec: Document) -> Document:
    metadata = label(values, name, "controller")
    return {"apiVersion": CERTIFICATES, "kind": kind, "metadata": metadata, "spec": spec}


def monitor(values: Values) -> list[Document]:
    """For the Prometheus operator; standby replicas are scraped too."""
    metrics = _service(values, "metrics", {"http": HTTP})
    metrics["spec"] |= {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"app.kubernetes.io/name": "bullpen"},
    }
    monitor: Document = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": {
            "name": "bullpen",
            "namespace": values.namespace,
            "labels": values.get("serviceMonitor.labels"),
        },
        "spec": {
            "selector": {"matchLabels": selector("metrics")},
            "endpoints": [{"port": "http", "interval": values.get("serviceMonitor.interval")}],
        },
    }
    return [metrics, monitor]
