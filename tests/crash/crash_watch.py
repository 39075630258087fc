"""Watches every lease while the lab is harmed, and judges each revision it sees.

Shares nothing with what it judges: it reads lines of JSON from the API server and keeps its
own small account of who holds what.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from typing import Any

from support.lab_helpers import GROUP, Lab, Refusal

PATH = f"{GROUP}/namespaces/default/leases"
RETRY_SECONDS = 0.1


class LeaseWatch:
    """Runs in a thread from ``start`` to ``stop``; ``violations`` says what it found."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._stopping = threading.Event()
        self._socket: socket.socket | None = None
        self._revision = 0
        self._holders: dict[str, str] = {}
        """Exporter to the lease that holds it."""

        self._held: dict[str, str] = {}
        self._ended: set[str] = set()
        self.violations: list[str] = []
        self.seen = 0
        self.relists = 0
        self.resumes = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if not self._revision:
                    self._list()
                self._follow()
            except (OSError, ValueError, http.client.HTTPException, Refusal, AttributeError):
                # The service is away or has just cut us; that is what this is about.
                time.sleep(RETRY_SECONDS)

    def _list(self) -> None:
        found = self._lab.request("GET", PATH)
        self.relists += 1
        self._holders.clear()
        self._held.clear()
        for item in found["items"]:
            self._judge(item, deleted=False)
        self._revision = int(found["metadata"]["resourceVersion"])

    def _follow(self) -> None:
        connection, headers = self._lab._connect()
        with contextlib.closing(connection):
            query = f"watch=true&resourceVersion={self._revision}&allowWatchBookmarks=true"
            connection.request("GET", f"{PATH}?{query}", headers=headers)
            response = connection.getresponse()
            self._socket = connection.sock
            if response.status != 200:
                self._refused(json.loads(response.read()))
            if self._socket is not None:
                self._socket.settimeout(None)
            self.resumes += 1
            while line := response.readline():
                self.hear(json.loads(line))

    def _refused(self, answer: dict[str, Any]) -> None:
        if "lies in the future" in answer["message"]:
            self._wrong(f"a change that was seen is gone: {answer['message']}")
        if answer["code"] == 410:
            self._revision = 0
        raise ValueError(answer["message"])

    def hear(self, event: dict[str, Any]) -> None:
        """Judge one event of the watch; raises ``ValueError`` when it was the last."""
        if event["type"] == "ERROR":
            if event["object"].get("code") == 410:
                self._revision = 0
            raise ValueError("the watch ended")
        item = event["object"]
        revision = int(item["metadata"]["resourceVersion"])
        if event["type"] == "BOOKMARK":
            if revision < self._revision:
                self._wrong(f"a bookmark at {revision} after revision {self._revision}")
            self._revision = max(self._revision, revision)
            return
        if revision <= self._revision:
            self._wrong(f"revision {revision} came after {self._revision}")
        self._revision = revision
        self.seen += 1
        self._judge(item, deleted=event["type"] == "DELETED")

    def _judge(self, item: dict[str, Any], *, deleted: bool) -> None:
        uid, status = item["metadata"]["uid"], item.get("status") or {}
        exporter = (status.get("exporterRef") or {}).get("name", "")
        active = bool(exporter) and not status.get("ended") and not deleted
        if active and uid in self._ended:
            self._wrong(f"{item['metadata']['name']} had ended and is active again")
        if status.get("ended") or deleted:
            self._ended.add(uid)
        self._account(uid, exporter if active else "")

    def _account(self, uid: str, exporter: str) -> None:
        before = self._held.pop(uid, "")
        if before and self._holders.get(before) == uid:
            del self._holders[before]
        if not exporter:
            return
        other = self._holders.get(exporter)
        if other is not None:
            self._wrong(f"{exporter} is held by {other} and by {uid}")
        self._holders[exporter] = uid
        self._held[uid] = exporter

    def _wrong(self, what: str) -> None:
        self.violations.append(f"revision {self._revision}: {what}")
