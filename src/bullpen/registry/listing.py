"""Lists: a page of matching objects, read from one snapshot of the store."""

from __future__ import annotations

from bullpen.errors import Gone
from bullpen.registry import paging
from bullpen.registry.options import Listed
from bullpen.registry.selecting import Filter
from bullpen.store.base import Entry, Page, Store

SCANNED_AT_ONCE_MAX = 500
"""Entries examined per step of a list with both a filter and a limit."""


def list_entries(
    store: Store,
    prefix: str,
    wanted: Filter,
    *,
    limit: int,
    continue_token: str,
    resource_version: str,
    match: str,
) -> Listed:
    """Up to ``limit`` matching entries under ``prefix``; 0 for all."""
    begun = paging.start(
        prefix,
        current=store.revision,
        limit=limit,
        token=continue_token,
        resource_version=resource_version,
        match=match,
    )
    try:
        if not wanted:
            return _plain(store, prefix, begun, limit)
        return _filtered(store, prefix, wanted, begun, limit)
    except Gone:
        raise paging.expired(prefix, begun) from None


def _plain(store: Store, prefix: str, begun: paging.Start, limit: int) -> Listed:
    page = store.scan(prefix, after=begun.after, limit=limit or None, at=begun.at)
    revision = _revision(page, begun)
    if not page.remaining:
        return Listed(entries=page.entries, revision=revision)
    token = paging.continue_token(prefix, page.entries[-1].key, revision)
    return Listed(
        entries=page.entries, revision=revision, continue_token=token, remaining=page.remaining
    )


def _filtered(store: Store, prefix: str, wanted: Filter, begun: paging.Start, limit: int) -> Listed:
    # There is no await in between, so every step sees the same state.
    after = begun.after
    step = SCANNED_AT_ONCE_MAX if limit else None
    found: list[Entry] = []
    while True:
        page = store.scan(prefix, after=after, limit=step, at=begun.at)
        revision = _revision(page, begun)
        found += [entry for entry in page.entries if wanted.matches(entry.key, entry.value)]
        if limit and len(found) > limit:
            token = paging.continue_token(prefix, found[limit - 1].key, revision)
            return Listed(entries=tuple(found[:limit]), revision=revision, continue_token=token)
        if not page.remaining:
            return Listed(entries=tuple(found), revision=revision)
        after = page.entries[-1].key


def _revision(page: Page, begun: paging.Start) -> int:
    """The revision of the list: the requested one, however old."""
    return page.revision if begun.at is None else begun.at
