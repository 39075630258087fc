"""What people do at the dashboard, as audit events.

Requests that are passed to the API server are recorded there.
"""

from __future__ import annotations

from bullpen.apiserver.http import Request, Response
from bullpen.apiserver.recording import REFUSALS
from bullpen.audit.events import ANONYMOUS, AuditEvent, AuditSink, Target, public_message
from bullpen.dashboard.people import Person
from bullpen.errors import LabError
from bullpen.kit.clock import Clock
from bullpen.kit.ids import Ids

_VERBS = {
    "CONNECT": "connect",
    "GET": "get",
    "HEAD": "get",
    "POST": "create",
    "PATCH": "patch",
    "DELETE": "delete",
}


class Recorder:
    def __init__(self, sink: AuditSink, *, clock: Clock, ids: Ids) -> None:
        self._sink = sink
        self._clock = clock
        self._ids = ids

    def record(
        self,
        request: Request,
        person: Person | None,
        response: Response,
        *,
        error: LabError | None = None,
        target: Target | None = None,
    ) -> None:
        """Record a change or a refusal; other reads are not recorded."""
        if request.method in ("GET", "HEAD") and response.status not in REFUSALS:
            return
        now = self._clock.now()
        self._sink.record(
            AuditEvent(
                audit_id=self._ids.uid(),
                received=now,
                completed=now,
                verb=_VERBS.get(request.method, request.method.lower()),
                uri=request.path,
                user=ANONYMOUS if person is None else person.user,
                source=request.source,
                user_agent=request.headers.get("user-agent", ""),
                target=target,
                code=response.status,
                reason=error.reason if error else "",
                message=public_message(error) if error else "",
            )
        )
