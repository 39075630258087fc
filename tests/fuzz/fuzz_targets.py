"""What is fuzzed with coverage: bytes in; a value, a refusal in words of ours, or a bug.

A target returns when all is well and raises when not. It does the same for the same bytes,
so that what was found can be kept and tried again without the fuzzer.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from joserfc.jwk import ECKey

from bullpen.api import codec, yaml
from bullpen.api.resources import RESOURCES
from bullpen.errors import BadRequest, Rejected, Unauthorized
from bullpen.identity.subjects import Role, Subject
from bullpen.identity.tokens import STREAM_LIFETIME, Signer, Ticket, Tickets, expiry
from bullpen.kit import durations, fieldselectors, quantities, selectors, times
from bullpen.kit.clock import EPOCH
from bullpen.registry.options import FieldValidation, PatchType, WriteOptions, Written
from bullpen.services.router import frames
from bullpen.store.journaled import MemoryStore
from support.registry_helpers import CONFIG_MAP, LEASE, SET, Lab, document, exporter_set, lease
from support.router_helpers import Peer, request

MESSAGE_LENGTH_MAX = 2_000
"""A refusal is read by people."""


@dataclass(frozen=True, slots=True)
class Target:
    """Something that reads what strangers write."""

    name: str
    run: Callable[[bytes], None]
    examples: tuple[bytes, ...]
    """Where the search starts."""

    words: tuple[str, ...] = ()
    """What it is made of, so that the search need not guess."""


def _text(data: bytes) -> str:
    """Bytes that are no text become halves of characters, which some callers let through."""
    return data.decode("utf-8", "surrogateescape")


def _short(error: Exception) -> None:
    assert len(str(error)) < MESSAGE_LENGTH_MAX, "a refusal nobody reads to its end"


def _label_selectors(data: bytes) -> None:
    try:
        found = selectors.parse_labels(_text(data))
    except BadRequest as error:
        return _short(error)
    found.matches({"a": "b"})
    assert selectors.parse_labels(str(found)) == found


def _field_selectors(data: bytes) -> None:
    try:
        found = fieldselectors.parse_fields(_text(data))
    except BadRequest as error:
        return _short(error)
    found.matches({"metadata": {"name": "x"}})
    assert fieldselectors.parse_fields(str(found)) == found


def _quantities(data: bytes) -> None:
    try:
        found = quantities.parse(_text(data))
    except ValueError as error:
        return _short(error)
    assert quantities.parse(str(found)).amount == found.amount
    found.whole()


def _durations(data: bytes) -> None:
    try:
        found = durations.parse(_text(data))
    except ValueError as error:
        return _short(error)
    assert durations.parse(durations.text(found)) == found


def _times(data: bytes) -> None:
    try:
        found = times.parse(_text(data))
    except ValueError as error:
        return _short(error)
    assert times.parse(times.micro_text(found)) == found


def _manifests(data: bytes) -> None:
    try:
        found = yaml.load_manifests(data)
    except BadRequest as error:
        return _short(error)
    assert yaml.load_manifests(yaml.dump(found))[0] == list(found)
    for item in found:
        _manifest(item)


def _manifest(item: Any) -> None:
    json.dumps(item).encode()
    if not isinstance(item, dict):
        return
    kind = RESOURCES.of_kind(str(item.get("apiVersion")), str(item.get("kind")))
    if kind is None or not isinstance(item.get("metadata"), dict):
        return
    complete = kind.default(item)
    if not kind.validate(complete) and kind.value is not None:
        # What passes validation can be read, and is written as it was.
        assert codec.encode(codec.decode(kind.value, complete)) == complete


async def _made_lab() -> Lab:
    lab = Lab(MemoryStore())
    await lab.registry.ensure_namespaces(["default"])
    for of, first in HELD:
        await lab.create(of, first, field_manager="first")
    return lab


HELD = (
    (LEASE, lease("a", metadata={"labels": {"x": "y"}, "finalizers": ["x.io/y"]})),
    (SET, exporter_set("a", minReplicas=1)),
    (CONFIG_MAP, document(CONFIG_MAP, "a", data={"k": "v"})),
)
PATCH_WORDS = (
    *("metadata", "labels", "finalizers", "spec", "status", "conditions", "replicas", "selector"),
    *("duration", "$patch", "$retainKeys", "$setElementOrder/conditions", "managedFields", "data"),
    *("resourceVersion", "ownerReferences", "op", "path", "value", "from", "apiVersion", "kind"),
    *("clientRef", "name", "release", "template", "matchLabels", "minReplicas", "maxReplicas"),
    *("add", "remove", "replace", "move", "copy", "test", "/spec", "/status", "/metadata/labels"),
    *("merge", "delete", "x", "type", "exporterRef", "annotations", "uid", "generation"),
)
DEPTH_MAX = 6
SUBRESOURCES = ("", "status", "scale")
PATCHES = tuple(PatchType)
VALIDATIONS = tuple(FieldValidation)
LAB = asyncio.run(_made_lab())


def _patches(data: bytes) -> None:
    """The first byte says of what, how and where; the rest is the patch."""
    if not data:
        return
    try:
        patch = json.loads(data[1:])
    except (ValueError, RecursionError):
        patch = _built(iter(data[1:]), DEPTH_MAX)
    pick, of = divmod(data[0], len(HELD))
    pick, kind = divmod(pick, len(PATCHES))
    sub, validation = divmod(pick, len(SUBRESOURCES))[::-1]
    options = WriteOptions(
        subresource=SUBRESOURCES[sub],
        dry_run=True,
        field_manager="me",
        force=PATCHES[kind] is PatchType.APPLY,
        field_validation=VALIDATIONS[validation % len(VALIDATIONS)],
    )
    resource = HELD[of][0]
    namespace = "default" if resource.namespaced else ""
    act = LAB.registry.patch(resource, namespace, "a", PATCHES[kind], patch, options)
    try:
        written = _finished(act)
    except Rejected as error:
        return _short(error)
    found = json.loads(written.value)
    if SUBRESOURCES[sub] != "scale":
        assert not resource.validate(found), "what a patch leaves behind is valid"


def _finished(act: Coroutine[Any, Any, Written]) -> Written:
    """The outcome of a dry run, which waits for nobody."""
    try:
        act.send(None)
    except StopIteration as end:
        outcome: Written = end.value
        return outcome
    raise AssertionError("a dry run waits for something")


def _built(source: Iterator[int], depth: int) -> Any:
    """JSON from bytes that are none, so that most inputs are patches: a byte says what comes."""
    kind, pick = divmod(next(source, 0), 32)
    if kind < 3 and depth:
        # Names of fields are what matters most, so they are not left to chance.
        pairs = ((next(source, 0), _built(source, depth - 1)) for _ in range(pick % 5))
        return {PATCH_WORDS[key % len(PATCH_WORDS)]: value for key, value in pairs}
    if kind < 5 and depth:
        return [_built(source, depth - 1) for _ in range(pick % 5)]
    if kind == 5:
        return PATCH_WORDS[pick % len(PATCH_WORDS)]
    if kind == 6:
        return bytes(itertools.islice(source, pick)).decode("latin-1")
    return (None, True, False, 0, -1, 1, 2**63, 1.5, "", {}, [])[pick % 11]


KEY = ECKey.import_key(
    {
        "kty": "EC",
        "crv": "P-256",
        "kid": "fuzz",
        # The example key of RFC 7515, appendix A.3: it signs nothing but what is fuzzed here.
        "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
        "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
        "d": "jpsQnnGQmL-YBIffH1136cspYG6-0iY7X1fCE9-E9LI",
    }
)
ALICE = Subject(role=Role.CLIENT, namespace="lab", name="alice", uid="u1")
SIGNER = Signer((KEY,))
TICKETS = Tickets(b"k" * 32)
TICKET = Ticket(stream="s", lease="u1", epoch=1, role=Role.CLIENT, expires=EPOCH + STREAM_LIFETIME)
TOKEN = SIGNER.issue(ALICE, token_id="t", now=EPOCH)
STREAM_TOKEN = TICKETS.mint(TICKET, now=EPOCH)


def _tokens(data: bytes) -> None:
    text = _text(data)
    try:
        # Whoever changes a token may spell its signature in another way, and nothing else.
        assert SIGNER.verify(text, now=EPOCH).subject == ALICE
    except Unauthorized as error:
        _short(error)
    try:
        assert TICKETS.verify(text, now=EPOCH) == TICKET
    except Unauthorized as error:
        _short(error)
    expiry(text)


def _router_frames(data: bytes) -> None:
    """The first byte says how the rest is cut, and whether it begins politely."""
    peer = Peer()
    cut, rest = data[0] if data else 0, data[1:]
    if cut & 1:
        peer.greet()
    size = (cut >> 1) or len(rest) or 1
    for start in range(0, len(rest), size):
        peer.say(rest[start : start + size])
    peer.connection.sweep(0.0)
    peer.connection.connection_lost(None)
    assert peer.router.load == 0


POOL = yaml.dump(document(SET, "pool", spec=exporter_set("pool")["spec"])).encode()
TARGETS = {
    target.name: target
    for target in (
        Target(
            "label-selectors",
            _label_selectors,
            (b"a=b,c!=d", b"x in (a,b),!y", b"a notin (b), z/c == d, n>3"),
            (" in ", " notin ", "==", "!=", "(", ")", ",", "!"),
        ),
        Target(
            "field-selectors", _field_selectors, (b"metadata.name=a,status.x!=b\\,c",), ("==", "!=")
        ),
        Target("quantities", _quantities, (b"1.5", b"100m", b"-512Mi", b"3e9"), ("Ki", "Ei", "e")),
        Target("durations", _durations, (b"1h30m", b"-1.5s", b"2us"), ("ms", "us", "ns")),
        Target("times", _times, (b"2026-01-01T00:00:00Z", b"2026-01-01T00:00:00.5+01:00")),
        Target(
            "manifests",
            _manifests,
            (POOL, b"a: &x [1, 2]\nb: *x\n---\nc: {<<: *x}"),
            ("&a ", "*a", "<<: ", "!!str ", "---\n", "%YAML 1.1\n", "? ", "|\n"),
        ),
        Target(
            "patches",
            _patches,
            (
                b'\x00{"metadata":{"labels":{"x":null}},"spec":{"duration":"2h"}}',
                b'\x01[{"op":"replace","path":"/spec/minReplicas","value":2}]',
                b'\x03{"spec":{"release":true}}',
                b'\x0b{"apiVersion":"v1","kind":"ConfigMap","data":{"k":"w"}}',
                b'\x0d{"spec":{"replicas":3}}',
            ),
            PATCH_WORDS,
        ),
        Target("tokens", _tokens, (TOKEN.encode(), STREAM_TOKEN.encode(), b"a.b.c"), ("none",)),
        Target(
            "router-frames",
            _router_frames,
            (
                b"\x01" + request(1),
                b"\x11" + request(1) + frames.window_update(0, 9) + frames.rst_stream(1, 8),
                b"\x00" + frames.PREFACE + frames.settings({}),
            ),
        ),
    )
}
