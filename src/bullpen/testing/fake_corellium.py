"""What the stand-in for Corellium (``corellium_stand_in.py``) does: its account, in memory.

Time is that of the clock it is given, so that rounds of faults take place in virtual time.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from bullpen.kit.clock import Clock
from bullpen.testing.fake_provider import AccountFaults

API_TOKEN = "an-api-token"
PROJECT = "d59db33d-0000-4000-8000-000000000001"
CONSOLE = "Primary Compute Non-Secure"
HISTORY_MAX = 100
TOKEN_HOLDS = timedelta(hours=1)

MODELS = (
    {
        "type": "automotive",
        "name": "rd1ae",
        "flavor": "kronos",
        "description": "",
        "model": "kronos",
        "peripherals": False,
        "quotas": {"cores": 4},
    },
    {
        "type": "iphone",
        "name": "iPhone 6",
        "flavor": "iphone6",
        "description": "",
        "model": "iPhone7,2",
        "peripherals": True,
        "quotas": {"cores": 2},
    },
)
SOFTWARE = ({"version": "1.1.1", "buildid": "Critical Application Monitor (Baremetal)"},)
CHANGES = {"start": "on", "stop": "off", "pause": "paused", "unpause": "on", "reboot": "on"}


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Call:
    query: Mapping[str, str]
    body: Mapping[str, Any]


class Denied(Exception):
    def __init__(self, status: int, kind: str, message: str, **facts: str) -> None:
        super().__init__(message)
        self.answer = Answer(status, {"error": message, "errorID": kind, **facts})


@dataclass(slots=True, kw_only=True)
class Device:
    """An instance."""

    id: str
    name: str
    request: dict[str, Any]
    created: datetime
    target: str = "on"
    since: datetime
    """When it was told to be in that state."""

    deleted: datetime | None = None
    snapshots: list[dict[str, Any]] = field(default_factory=list)
    typed: list[str] = field(default_factory=list)
    """What is on its disk: the lines that were typed on its console."""

    disks: dict[str, list[str]] = field(default_factory=dict)
    """What was on it, by snapshot."""

    restored: datetime | None = None


@dataclass(frozen=True, slots=True)
class Session:
    instance: str
    features: Mapping[str, bool]
    expires: datetime


class Corellium:
    """One account with one project."""

    def __init__(
        self,
        clock: Clock,
        *,
        new_id: Callable[[], str] = lambda: secrets.token_hex(16),
        happens: Callable[[float], bool] = lambda chance: chance >= 1,
    ) -> None:
        """``happens`` decides whether a fault of some probability takes place."""
        self.faults = AccountFaults()
        self.quotas: dict[str, int] = {"cores": 24, "ram": 65536}
        self.has_sessions = True
        self.retry_after = 1
        """What a throttled caller is told, in seconds."""

        self.restore_seconds = 0.0
        self.shortens_names_to = 0
        """Names of instances are cut to so many characters; 0 for none."""

        self.throttled_calls = 0
        """So many next calls are throttled."""

        self.lost = ""
        """The next call whose answer is lost, as in ``calls``."""

        self.calls: list[str] = []
        self.sockets = ""
        """Where its consoles are: the beginning of their addresses."""

        self.devices: dict[str, Device] = {}
        self.sessions: dict[str, Session] = {}
        self.tickets: dict[str, str] = {}
        """By what is in the address of a console, its instance."""

        self.made = 0
        self._clock = clock
        self._new_id = new_id
        self._happens = happens
        self._tokens: dict[str, datetime] = {}

    @property
    def machines(self) -> list[Device]:
        """What exists, or is being deleted."""
        now = self._clock.now()
        gone = [each.id for each in self.devices.values() if self._is_gone(each, now)]
        for each in gone:
            del self.devices[each]
        return [*self.devices.values()]

    def answer(
        self,
        method: str,
        path: str,
        *,
        token: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Answer:
        """The answer to a call of ``/api/v1``."""
        self.calls.append(f"{method} {path}")
        if self.throttled_calls or self._happens(self.faults.throttled):
            self.throttled_calls = max(0, self.throttled_calls - 1)
            headers = {"Retry-After": str(self.retry_after)}
            return Answer(429, {"error": "Too many requests", "errorID": "RateLimit"}, headers)
        try:
            for pattern, methods in ROUTES:
                found = re.fullmatch(pattern, path)
                if found is not None and method in methods:
                    if path != "/tokens":
                        self._authorize(token, method, path)
                    made: Answer = getattr(self, methods[method])(
                        Call(query or {}, body or {}), *found.groups()
                    )
                    return made
            raise Denied(404, "NotFound", f"there is no {method} {path}")
        except Denied as denied:
            return denied.answer

    def _authorize(self, token: str, method: str, path: str) -> None:
        plain = token.removeprefix("Bearer ")
        now = self._clock.now()
        if plain == API_TOKEN and plain != token:
            return
        if self._tokens.get(plain, now) > now:
            return
        session = self.sessions.get(plain)
        if session is None or session.expires <= now:
            raise Denied(403, "PermissionDenied", "Invalid or missing authorization token")
        own = f"/instances/{session.instance}"
        allowed = {
            ("GET", own): True,
            ("GET", f"{own}/console"): session.features.get("console", False),
            ("PUT", f"{own}/state"): session.features.get("powerManagement", False),
        }
        snapshots = path.startswith(f"{own}/snapshots") and session.features.get("snapshots")
        if not snapshots and not allowed.get((method, path), False):
            raise Denied(403, "PermissionDenied", "the session may not do this")

    # Tokens and projects

    def new_token(self, call: Call) -> Answer:
        if call.body.get("apiToken") != API_TOKEN:
            raise Denied(403, "PermissionDenied", "Invalid or missing authorization token")
        token, expires = secrets.token_hex(8), self._clock.now() + TOKEN_HOLDS
        self._tokens[token] = expires
        return Answer(200, {"token": token, "expiration": _text(expires)})

    def list_projects(self, call: Call) -> Answer:
        shown = {"id": PROJECT} if call.query.get("ids_only") else self._project()
        return Answer(200, [shown])

    def get_project(self, call: Call, project: str) -> Answer:
        if project != PROJECT:
            raise Denied(404, "ProjectNotFound", "No project associated with this value")
        return Answer(200, self._project())

    def list_models(self, call: Call) -> Answer:
        return Answer(200, list(MODELS))

    def list_supported(self, call: Call) -> Answer:
        """What an older client asks for instead of the models."""
        return Answer(200, [{**model, "firmwares": list(SOFTWARE)} for model in MODELS])

    def new_session(self, call: Call) -> Answer:
        if not self.has_sessions:
            raise Denied(403, "PermissionDenied", "Webplayer is not enabled for this domain")
        found = self._device(call.body["instanceId"])
        expires = self._clock.now() + timedelta(seconds=call.body["expiresIn"])
        token = f"session-{self._new_id()}"
        self.sessions[token] = Session(found.id, call.body["features"], expires)
        ends = expires.timestamp()  # a number, says one client; a text, says another
        shown = {"identifier": self._new_id(), "token": token, "expiration": ends}
        return Answer(200, shown)

    # Instances

    def list_instances(self, call: Call, project: str = PROJECT) -> Answer:
        ids = call.query["id"].split(",") if "id" in call.query else None
        shown = [
            self._shown(each)
            for each in self.machines
            if call.query.get("name", each.name) == each.name
            and (ids is None or each.id in ids)
            and self._is_listed(each)
        ]
        return Answer(200, shown if project == PROJECT else [])

    def create(self, call: Call) -> Answer:
        model = next((each for each in MODELS if each["flavor"] == call.body.get("flavor")), None)
        if model is None:
            raise Denied(400, "UserError", "Unsupported device model", field="flavor")
        if call.body.get("project") != PROJECT:
            raise Denied(404, "ProjectNotFound", "No project associated with this value")
        limits, used = self._limits(), self._used()
        wanted = {"cores": _cores(call.body), "instances": 1}
        for name, more in wanted.items():
            if name in limits and used[name] + more > limits[name]:
                raise Denied(403, "QuotaExceeded", f"The project's quota of {name} is exceeded")
        self.made += 1
        now = self._clock.now()
        name = str(call.body.get("name") or f"device {self.made}")
        if self.shortens_names_to:
            name = name[: self.shortens_names_to]
        made = Device(id=self._new_id(), name=name, request=dict(call.body), created=now, since=now)
        made.snapshots.append(self._snapshot(made, "Fresh", fresh=True))
        self.devices[made.id] = made
        return Answer(200, {"id": made.id, "state": self._state(made)})

    def get(self, call: Call, instance: str) -> Answer:
        return Answer(200, self._shown(self._device(instance)))

    def delete(self, call: Call, instance: str) -> Answer:
        found = self._device(instance)
        found.deleted = found.deleted or self._clock.now()
        return Answer(204)

    def change(self, call: Call, instance: str) -> Answer:
        found = self._device(instance)
        found.name = call.body.get("name", found.name)
        return Answer(200, self._shown(found))

    def set_state(self, call: Call, instance: str) -> Answer:
        if call.body.get("state") not in ("on", "off", "paused"):
            raise Denied(400, "ValidationError", "Invalid state", field="state")
        self._switch(self._device(instance), call.body["state"])
        return Answer(204)

    def act(self, call: Call, instance: str, action: str) -> Answer:
        self._switch(self._device(instance), CHANGES[action])
        return Answer(204)

    def console(self, call: Call, instance: str) -> Answer:
        found = self._device(instance)
        if call.query.get("type", "0") not in ("0", "uart-0"):
            raise Denied(404, "ConsoleNotFound", "there is no such console")
        ticket = secrets.token_urlsafe(16)
        self.tickets[ticket] = found.id
        return Answer(200, {"url": f"{self.sockets}/console/{ticket}"})

    def list_snapshots(self, call: Call, instance: str) -> Answer:
        return Answer(200, self._device(instance).snapshots)

    def new_snapshot(self, call: Call, instance: str) -> Answer:
        found = self._device(instance)
        found.snapshots.append(self._snapshot(found, call.body["name"], fresh=False))
        return Answer(200, found.snapshots[-1])

    def restore(self, call: Call, instance: str, snapshot: str) -> Answer:
        found = self._device(instance)
        if snapshot not in found.disks:
            raise Denied(404, "SnapshotNotFound", "No snapshot associated with this value")
        found.typed, found.restored = [*found.disks[snapshot]], self._clock.now()
        return Answer(204)

    # How it works

    def say(self, instance: str, line: str) -> str:
        """What a console repeats: the line, or after ``history`` all earlier ones."""
        typed = self.devices[instance].typed
        if line == "history":
            return ", ".join(typed)
        typed[:] = [*typed, line][-HISTORY_MAX:]
        return line

    def is_on(self, instance: str) -> bool:
        found = self.devices.get(instance)
        return found is not None and self._state(found) == "on"

    def _switch(self, found: Device, target: str) -> None:
        if found.target != target:
            found.target, found.since = target, self._clock.now()

    def _device(self, instance: str) -> Device:
        found = next((each for each in self.machines if each.id == instance), None)
        if found is None:
            message = "No instance associated with this value"
            raise Denied(404, "InstanceNotFound", message)
        return found

    def _state(self, found: Device) -> str:
        now = self._clock.now()
        if found.deleted is not None:
            return "deleting"
        if found.target != "on":
            return found.target
        if (now - found.since).total_seconds() >= self.faults.boot_seconds:
            return "on"
        return "creating" if found.since == found.created else "booting"

    def _is_restoring(self, found: Device) -> bool:
        if found.restored is None:
            return False
        return (self._clock.now() - found.restored).total_seconds() < self.restore_seconds

    def _is_gone(self, found: Device, now: datetime) -> bool:
        if found.deleted is None:
            return False
        return (now - found.deleted).total_seconds() >= self.faults.delete_seconds

    def _is_listed(self, found: Device) -> bool:
        age = (self._clock.now() - found.created).total_seconds()
        return age >= self.faults.listed_after and not self._happens(self.faults.omitted)

    def _project(self) -> dict[str, Any]:
        limits, used = self._limits(), self._used()
        return {
            "id": PROJECT,
            "name": "Default Project",
            "settings": {"version": 1, "internet-access": True, "dhcp": False},
            "quotas": limits,
            "quotasUsed": {**used, "ram": 0, "gpu": 0},
        }

    def _limits(self) -> dict[str, int]:
        instances = {"instances": self.faults.quota} if self.faults.quota else {}
        return {**self.quotas, **instances}

    def _used(self) -> dict[str, int]:
        existing = self.machines
        return {
            "cores": sum(_cores(each.request) for each in existing),
            "instances": len(existing),
        }

    def _shown(self, found: Device) -> dict[str, Any]:
        return {
            "id": found.id,
            "name": found.name,
            "key": "",
            "flavor": found.request["flavor"],
            "type": "automotive",
            "project": PROJECT,
            "state": self._state(found),
            "stateChanged": _text(found.since),
            "userTask": None,
            "taskState": "restore" if self._is_restoring(found) else "none",
            "error": None,
            "bootOptions": {"bootArgs": "", "additionalTags": [], "udid": "", "ecid": ""},
            "serviceIp": "10.11.0.1",
            "wifiIp": "10.11.0.2",
            "services": {"vpn": {}},
            "panicked": False,
            "created": _text(found.created),
            "model": "kronos",
            "os": found.request.get("os", ""),
            "fault": False,
            "patches": found.request.get("patches", []),
            "createdBy": {"id": "1", "username": "lab", "label": "lab"},
            "consoles": [{"name": CONSOLE, "id": "port-uart-0"}],
        }

    def _snapshot(self, found: Device, name: str, *, fresh: bool) -> dict[str, Any]:
        snapshot = self._new_id()
        found.disks[snapshot] = [*found.typed]
        return {
            "id": snapshot,
            "name": name,
            "instance": found.id,
            "status": {"task": "none", "created": True},
            "date": self._clock.now().timestamp(),
            "fresh": fresh,
            "live": False,
            "local": False,
        }


ROUTES: tuple[tuple[str, dict[str, str]], ...] = (
    (r"/tokens", {"POST": "new_token"}),
    (r"/projects", {"GET": "list_projects"}),
    (r"/projects/([^/]+)", {"GET": "get_project"}),
    (r"/projects/([^/]+)/instances", {"GET": "list_instances"}),
    (r"/models", {"GET": "list_models"}),
    (r"/supported", {"GET": "list_supported"}),
    (r"/webplayer", {"POST": "new_session"}),
    (r"/instances", {"GET": "list_instances", "POST": "create"}),
    (r"/instances/([^/]+)", {"GET": "get", "DELETE": "delete", "PATCH": "change"}),
    (r"/instances/([^/]+)/state", {"PUT": "set_state"}),
    (r"/instances/([^/]+)/console", {"GET": "console"}),
    (r"/instances/([^/]+)/snapshots/([^/]+)/restore", {"POST": "restore"}),
    (r"/instances/([^/]+)/snapshots", {"GET": "list_snapshots", "POST": "new_snapshot"}),
    (r"/instances/([^/]+)/(start|stop|pause|unpause|reboot)", {"POST": "act"}),
)


def _cores(request: Mapping[str, Any]) -> int:
    found = (each["quotas"] for each in MODELS if each["flavor"] == request.get("flavor"))
    quotas: Any = next(found)
    return int(quotas["cores"])


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
