"""The zygote and its supervisors, one after the other."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from bullpen.placements.local.wire import EVENTS, Frames, Hello
from bullpen.placements.local.zygote import Zygote


def test_news_of_a_supervisor_that_was_just_replaced_does_not_end_the_zygote(
    tmp_path: Path,
) -> None:
    """Its end and the arrival of the next are seen in one look at the sockets."""
    with (
        socket.socket(socket.AF_UNIX) as listener,
        socket.socket(socket.AF_UNIX) as first,
        socket.socket(socket.AF_UNIX) as second,
    ):
        listener.bind(str(tmp_path / "control"))
        listener.listen()
        janitor: Any = None
        zygote = Zygote(listener, janitor, orphan_seconds_max=30.0)
        first.connect(str(tmp_path / "control"))
        zygote._accept()
        second.connect(str(tmp_path / "control"))
        first.close()
        zygote._accept()
        zygote._receive()
        (hello,) = Frames(EVENTS).feed(second.recv(4096))
        assert isinstance(hello, Hello)
        zygote._part()
        zygote._selector.close()
        for end in (zygote._wakeups, zygote._wake):
            end.close()
