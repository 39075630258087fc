"""Log lines: a constant message, then facts as ``name=value``, on standard error."""

from __future__ import annotations

import logging
import time

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class _Formatter(logging.Formatter):
    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        facts = " ".join(
            f"{name}={value}" for name, value in vars(record).items() if name not in _STANDARD
        )
        head, newline, trace = line.partition("\n")
        return f"{head} {facts}{newline}{trace}" if facts else line


def configure(*, verbose: bool = False) -> None:
    """Send logs to standard error. Libraries log from WARNING on."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        _Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%FT%T")
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("bullpen").setLevel(logging.DEBUG if verbose else logging.INFO)
