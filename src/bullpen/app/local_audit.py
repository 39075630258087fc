"""Audit events of commands that change a data directory without going through the API server."""

from __future__ import annotations

import os
import pwd

from bullpen.api.paths import Document
from bullpen.app.config import AuditConfig
from bullpen.audit.events import AuditEvent, Target
from bullpen.audit.log import AuditLog
from bullpen.core.rbac.authorization import MASTERS, User
from bullpen.datadir.directory import Layout
from bullpen.kit.clock import Clock
from bullpen.kit.ids import Ids


def local_user() -> User:
    """The operating system user of this process."""
    number = os.geteuid()
    try:
        name = pwd.getpwuid(number).pw_name
    except KeyError:
        name = str(number)
    return User(name=f"local:{name}", uid=str(number), groups=(MASTERS,))


def applied_event(document: Document, *, clock: Clock, ids: Ids) -> AuditEvent:
    """A manifest of ``bullpen up -f`` was applied."""
    meta = document.get("metadata") or {}
    group, _, version = str(document.get("apiVersion", "")).rpartition("/")
    target = Target(
        resource=str(document.get("kind", "")).lower(),
        group=group,
        version=version,
        namespace=str(meta.get("namespace") or ""),
        name=str(meta.get("name", "")),
    )
    return _event("patch", "bullpen up -f", target, clock=clock, ids=ids)


def record_restore(layout: Layout, backup: str, *, clock: Clock, ids: Ids) -> None:
    """``bullpen restore`` replaced the database; the service is not running."""
    log = AuditLog(layout.audit, AuditConfig().rotation(), clock=clock)
    log.start()
    target = Target(resource="backups", name=backup)
    log.record(_event("restore", "bullpen restore", target, clock=clock, ids=ids))
    log.close()


def _event(verb: str, command: str, target: Target, *, clock: Clock, ids: Ids) -> AuditEvent:
    now = clock.now()
    return AuditEvent(
        audit_id=ids.uid(),
        received=now,
        completed=now,
        verb=verb,
        uri=command,
        user=local_user(),
        user_agent="bullpen",
        target=target,
        code=200,
    )
