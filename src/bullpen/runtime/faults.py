"""Objects that could not be processed because of a defect in this program.

One bad object must not stop the work on all others. Code that handles objects one by one
wraps each in ``guarding``: an unexpected exception is recorded as a fault of that object,
logged with its traceback, and the caller goes on with the next object. Errors of our own
tree pass through, because their callers know what to do with them.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bullpen.api.fields import Kind
from bullpen.api.objects import meta_of
from bullpen.errors import LabError

log = logging.getLogger("bullpen.runtime")

FAULTS_MAX = 1_000
"""Objects remembered as faulty. Beyond that, faults are logged and counted only."""

ERROR_LENGTH_MAX = 300


@dataclass(frozen=True, slots=True)
class ObjectKey:
    kind: type[Kind]
    namespace: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why an object could not be processed."""

    part: str
    """The component that failed, such as the name of a controller."""

    error: str
    uid: str


class Faults:
    def __init__(self) -> None:
        self._found: dict[ObjectKey, dict[str, Fault]] = {}
        self._listeners: list[Callable[[ObjectKey], None]] = []
        self.counts: Counter[tuple[str, str]] = Counter()
        """Unexpected exceptions so far, by kind and part."""

    def listen(self, listener: Callable[[ObjectKey], None]) -> None:
        """Call ``listener`` with the key of an object whose faults have changed."""
        self._listeners.append(listener)

    def of(self, key: ObjectKey) -> tuple[Fault, ...]:
        """The present faults of one object, in the order of their parts."""
        return tuple(fault for _, fault in sorted(self._found.get(key, {}).items()))

    def all(self) -> tuple[ObjectKey, ...]:
        return tuple(self._found)

    @contextlib.contextmanager
    def guarding(self, part: str, value: Kind) -> Iterator[None]:
        """Record an unexpected exception as a fault of ``value`` instead of raising it."""
        try:
            yield
        except LabError:
            raise
        except Exception as error:
            self.report(part, value, error)
        else:
            self.clear(part, value)

    def report(self, part: str, value: Kind, error: Exception) -> None:
        """``part`` could not process ``value``."""
        key = _key_of(value)
        self.counts[value.kind, part] += 1
        text = f"{type(error).__name__}: {error}"[:ERROR_LENGTH_MAX]
        fault = Fault(part=part, error=text, uid=meta_of(value).uid)
        known = self._found.get(key, {})
        if known.get(part) == fault:
            return
        facts = {"key": (key.namespace, key.name), "kind": value.kind, "part": part}
        log.error("object cannot be processed", extra=facts, exc_info=error)
        if key in self._found or len(self._found) < FAULTS_MAX:
            self._found[key] = {**known, part: fault}
            self._tell(key)

    def clear(self, part: str, value: Kind) -> None:
        """``part`` processed ``value`` without an unexpected exception."""
        if not self._found:
            return
        key = _key_of(value)
        known = self._found.get(key, {})
        if known.pop(part, None) is not None:
            if not known:
                del self._found[key]
            self._tell(key)

    def forget(self, value: Kind) -> None:
        """``value`` was deleted, and its faults with it."""
        if self._found:
            self.drop(_key_of(value))

    def drop(self, key: ObjectKey) -> None:
        """Forget the faults of an object that does not exist."""
        if self._found.pop(key, {}):
            self._tell(key)

    def _tell(self, key: ObjectKey) -> None:
        for listener in self._listeners:
            listener(key)


def _key_of(value: Kind) -> ObjectKey:
    meta = meta_of(value)
    return ObjectKey(type(value), meta.namespace, meta.name)
