"""Detects lost commits in a write-ahead log that SQLite would silently ignore.

SQLite takes the first frame with a wrong checksum for the end of the log. That is correct
after a crash, when the last commit was never synced, and wrong when the disk corrupted the
middle of the log. The frames that follow distinguish the two. A commit starts only after
the previous one was synced, so two commits after the first bad frame prove that the first
of them had been acknowledged.
"""

from __future__ import annotations

import struct
from pathlib import Path

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_MAGIC = (0x377F0682, 0x377F0683)
"""Little-endian and big-endian checksums."""

UNSYNCED_COMMITS_MAX = 1
"""Commits a crash may leave half written."""


def problem(wal: Path, *, valid_frames: int) -> str:
    """The error in the log, given the number of frames SQLite accepted; or empty."""
    if not wal.exists():
        return ""
    with wal.open("rb") as file:
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size or not any(header):
            # The header itself was never synced, so no commit followed it.
            return ""
        magic, _, page_size, _, *salts, first, second = _HEADER.unpack(header)
        if magic not in _MAGIC or _checksum(header[:24], big=magic & 1 == 1) != (first, second):
            return "the header of its write-ahead log is damaged"
        step = _FRAME.size + page_size
        commits = 0
        for offset in range(_HEADER.size + valid_frames * step, wal.stat().st_size, step):
            file.seek(offset)
            commits += _commits(file.read(_FRAME.size), salts)
    if commits > UNSYNCED_COMMITS_MAX:
        return f"its write-ahead log is damaged: {commits} commits follow an unreadable one"
    return ""


def _commits(frame: bytes, salts: list[int]) -> bool:
    """Whether this frame ends a commit of the current log and not of an earlier one."""
    if len(frame) < _FRAME.size:
        return False
    _, pages_after, first, second, _, _ = _FRAME.unpack(frame)
    return pages_after > 0 and [first, second] == salts


def _checksum(data: bytes, *, big: bool) -> tuple[int, int]:
    """SQLite's checksum, over the words of a header."""
    words = struct.unpack(f"{'>' if big else '<'}{len(data) // 4}I", data)
    first = second = 0
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second
