"""Templates for ``-o jsonpath=``: the part of kubectl's language that scripts use.

Text outside braces is printed as it is. In braces: a path such as ``.metadata.name``,
``.items[0]``, ``.items[*].metadata.name``, ``.metadata.labels['a.b/c']``,
``.items[?(@.status.x=="y")]``; a text in quotation marks; ``range PATH`` … ``end``. A missing
field prints nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from bullpen.errors import BadRequest

_TOKEN = re.compile(r"\{((?:[^{}\"']|\"(?:[^\"\\]|\\.)*\"|'[^']*')*)\}|([^{]+)")
_STEP = re.compile(
    r"\.\.?(?P<field>(?:[^.\[\]'\"\\]|\\.)+)"
    r"|\[(?P<index>-?\d+)\]"
    r"|(?P<every>\[\*\]|\.\*)"
    r"|\[(?P<quote>['\"])(?P<key>.*?)(?P=quote)\]"
    r"|\[\?\(@(?P<path>[^=!<>)]*?)\s*(?:(?P<operator>==|!=)\s*(?P<value>[^)]+?))?\s*\)\]"
)


@dataclass(frozen=True, slots=True)
class _Part:
    kind: str
    """``text``, ``path``, ``range`` or ``end``."""

    content: str = ""


def rendered(template: str, document: object) -> str:
    """What the template prints for a document. Raises ``BadRequest`` if it is malformed."""
    parts = list(_parts(template))
    text, rest = _render(parts, 0, document, document)
    if rest != len(parts):
        raise BadRequest(f"jsonpath: {{end}} without {{range}} in {template!r}")
    return text


def _parts(template: str) -> Iterator[_Part]:
    if "{" not in template:
        template = "{" + (template if template.startswith(".") else f".{template}") + "}"
    position = 0
    while position < len(template):
        found = _TOKEN.match(template, position)
        if found is None:
            raise BadRequest(f"jsonpath: a brace is not closed in {template!r}")
        position = found.end()
        inside = found[1]
        yield _Part("text", found[2]) if inside is None else _instruction(inside.strip())


def _instruction(inside: str) -> _Part:
    if inside == "end":
        return _Part("end")
    if inside.startswith("range "):
        return _Part("range", inside.removeprefix("range ").strip())
    if inside[:1] in ("'", '"'):
        try:
            return _Part("text", json.loads('"' + inside[1:-1] + '"'))
        except ValueError:
            raise BadRequest(f"jsonpath: {inside} is not a text") from None
    return _Part("path", inside)


def _render(parts: list[_Part], start: int, root: object, current: object) -> tuple[str, int]:
    """The text of the parts up to the ``end`` of this range, and the place of that ``end``."""
    out, place = "", start
    while place < len(parts) and parts[place].kind != "end":
        part = parts[place]
        if part.kind == "text":
            out += part.content
        elif part.kind == "path":
            out += " ".join(map(_shown, found(part.content, root, current)))
        else:
            text, place = _repeated(parts, place, root, current)
            out += text
        place += 1
    return out, place


def _repeated(parts: list[_Part], place: int, root: object, current: object) -> tuple[str, int]:
    out = ""
    _, end = _render(parts, place + 1, None, None)
    if end == len(parts):
        raise BadRequest("jsonpath: {range} without {end}")
    for item in found(parts[place].content, root, current):
        text, _ = _render(parts, place + 1, root, item)
        out += text
    return out, end


def found(path: str, root: object, current: object) -> list[object]:
    """The values at a path. Raises ``BadRequest`` if it cannot be read."""
    rest = path
    values = [root if path.startswith("$") else current]
    rest = rest.removeprefix("$").removeprefix("@")
    if rest and rest[0] not in ".[":
        rest = f".{rest}"
    if rest == ".":
        return values
    position = 0
    while position < len(rest):
        step = _STEP.match(rest, position)
        if step is None:
            raise BadRequest(f"jsonpath: {rest[position:]!r} cannot be read in {path!r}")
        position = step.end()
        values = [after for value in values for after in _after(step, value)]
    return values


def _after(step: re.Match[str], value: object) -> Iterator[object]:
    name = step["key"] if step["quote"] else step["field"]
    if step["every"]:
        yield from value if isinstance(value, list) else _values(value)
    elif name is not None:
        key = name if step["quote"] else re.sub(r"\\(.)", r"\1", name)
        if isinstance(value, dict) and key in value:
            yield value[key]
    elif step["index"] is not None:
        index = int(step["index"])
        if isinstance(value, list) and -len(value) <= index < len(value):
            yield value[index]
    elif isinstance(value, list):
        yield from (item for item in value if _passes(step, item))


def _values(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        yield from value.values()


def _passes(step: re.Match[str], item: object) -> bool:
    seen = found(step["path"] or ".", item, item)
    if step["operator"] is None:
        return bool(seen)
    text = step["value"].strip()
    try:
        wanted = text[1:-1] if text[:1] in ("'", '"') else json.loads(text)
    except ValueError:
        raise BadRequest(f"jsonpath: {text} is neither a number, true, false nor a text") from None
    return (wanted in seen) == (step["operator"] == "==")


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
