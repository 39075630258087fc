"""Tells systemd when the service is up and when it stops (sd_notify(3)).

Without a manager that asks for it nothing is sent. A manager that cannot be reached is no reason to
stop serving; it is logged.
"""

from __future__ import annotations

import logging
import os
import socket

log = logging.getLogger("bullpen.app")

VARIABLE = "NOTIFY_SOCKET"
READY = "READY=1"
STOPPING = "STOPPING=1"


def notify(state: str) -> None:
    """Send ``state`` to the service manager, if there is one."""
    address = os.environ.get(VARIABLE, "")
    if not address:
        return
    # A name that begins with @ is in the abstract namespace.
    name = f"\0{address[1:]}" if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.sendto(state.encode(), name)
    except OSError as error:
        facts = {"key": address, "state": state, "cause": error.strerror}
        log.warning("service manager not notified", extra=facts)
