"""Objects with Kubernetes' semantics, over a store: the entry point.

Every write reads the newest accepted state, computes the next one with the pure modules
beside this one, and commits it with compare-and-set. There is no await between the read and
the commit, so writes of one process never collide; if the store rejects one nevertheless,
it is retried a bounded number of times. Nothing here knows HTTP, users or permissions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from bullpen.api.paths import Document
from bullpen.api.resource import Resource
from bullpen.api.resources import RESOURCES, Resources
from bullpen.errors import BadRequest, LabError, MethodNotAllowed, NotFound
from bullpen.kit import times
from bullpen.kit.clock import Clock
from bullpen.kit.ids import Ids
from bullpen.kit.selectors import FieldSelector, Selector
from bullpen.registry import metadata, namespaces, preparation, scale
from bullpen.registry.commits import Commits, Documents, Foresight
from bullpen.registry.lists import Filter, list_entries
from bullpen.registry.messages import already_exists, conflict, name_not_generated, not_found
from bullpen.registry.options import (
    ATTEMPTS_MAX,
    Deleted,
    DeleteOptions,
    Listed,
    PatchType,
    WriteOptions,
    Written,
)
from bullpen.registry.patches import check_options, patched
from bullpen.registry.preparation import Place
from bullpen.registry.requests import (
    check_document,
    check_subresource,
    rendered,
    warnings_about,
)
from bullpen.registry.watches import ObjectWatch
from bullpen.store.base import Entry, Store

DELETED_AT_ONCE_MAX = 128
"""Deletions of one collection that wait for the disk concurrently."""

Edit = Callable[[Document], Document]


class Registry:
    def __init__(
        self, store: Store, *, clock: Clock, ids: Ids, resources: Resources = RESOURCES
    ) -> None:
        self.store = store
        self.resources = resources
        self._clock = clock
        self._ids = ids
        self._documents = Documents()
        self._commits = Commits(store, self._documents)
        found = resources.of_kind("v1", "Namespace")
        assert found is not None, "objects live in namespaces, so there must be a kind for them"
        self._namespaces = found

    @property
    def revision(self) -> int:
        """The newest revision that a client can have seen."""
        return self.store.revision

    def get(self, resource: Resource, namespace: str, name: str, *, subresource: str = "") -> bytes:
        """The object as stored, or its Scale; raises ``NotFound``."""
        check_subresource(resource, subresource)
        entry = self.store.get(resource.key(namespace, name))
        if entry is None:
            raise not_found(resource, name)
        return rendered(resource, entry.value, subresource)

    def list(
        self,
        resource: Resource,
        namespace: str | None,
        *,
        labels: Selector | None = None,
        fields: FieldSelector | None = None,
        limit: int = 0,
        continue_token: str = "",
        resource_version: str = "",
        match: str = "",
    ) -> Listed:
        """The objects in ``namespace``, or in all for None, at one revision."""
        return list_entries(
            self.store,
            _prefix(resource, namespace),
            Filter(resource, labels, fields),
            limit=limit,
            continue_token=continue_token,
            resource_version=resource_version,
            match=match,
        )

    def watch(
        self,
        resource: Resource,
        namespace: str | None,
        *,
        labels: Selector | None = None,
        fields: FieldSelector | None = None,
        since: int | None = None,
        initial: bool = False,
    ) -> ObjectWatch:
        """Every event after ``since``; raises ``Gone`` if that is no longer retained.

        Without ``since``, or with ``initial``, the watch begins with the current state as ADDED
        events.
        """
        prefix, wanted = _prefix(resource, namespace), Filter(resource, labels, fields)
        if since is not None and not initial:
            return ObjectWatch(self._commits.changes(prefix, since), wanted, self.document)
        page = self.store.scan(prefix)
        state = tuple(e for e in page.entries if not wanted or wanted.matches(e.key, e.value))
        changes = self._commits.changes(prefix, page.revision)
        return ObjectWatch(changes, wanted, self.document, state=state, revision=page.revision)

    def foresee(self, foresight: Foresight) -> None:
        """Call ``foresight`` for each accepted write, and with the current state if it is lost."""
        self._commits.foresights.append(foresight)

    def document(self, value: bytes) -> Document:
        """The decoded document of a stored ``value``; it must not be edited."""
        return self._documents.of(value)

    async def create(
        self, resource: Resource, namespace: str, document: Document, options: WriteOptions
    ) -> Written:
        """Create an object, with its name or one generated from its ``generateName``."""
        if options.subresource:
            raise MethodNotAllowed(f"a {options.subresource} is not created but updated")
        given = metadata.checked(resource, document).get("metadata") or {}
        metadata.check_place(document, namespace=namespace)
        if given.get("resourceVersion"):
            raise BadRequest("resourceVersion should not be set on objects to be created")
        name = given.get("name") or ""
        generated = not name and bool(given.get("generateName"))
        for _ in range(ATTEMPTS_MAX if generated else 1):
            if generated:
                name = metadata.generated_name(given["generateName"], self._ids.suffix())
            place = self._enter(resource, namespace, name)
            new = preparation.to_create(resource, document, place, options, time=self._time())
            _admit(options, new, None)
            warnings = warnings_about(resource, document, options)
            key = resource.key(place.namespace, name)
            value = await self._commits.create(key, new, dry_run=options.dry_run)
            if value is not None:
                return Written(value=value, created=True, warnings=warnings)
        if generated:
            raise name_not_generated(resource, name)
        raise already_exists(resource, name, deleting=self._is_deleting(resource, namespace, name))

    async def update(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        document: Document,
        options: WriteOptions,
    ) -> Written:
        """Replace the object, or the part of it that belongs to the subresource.

        A ``resourceVersion`` in ``document`` must be the current one; without it the write is
        unconditional.
        """
        return await self._write(resource, namespace, name, lambda _: document, options)

    async def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        type: PatchType,
        patch: Any,
        options: WriteOptions,
    ) -> Written:
        """Apply ``patch`` to the object. Only server-side apply creates a missing object."""
        check_options(type, options)
        if type is PatchType.APPLY:
            return await self._apply(resource, namespace, name, patch, options)

        def change(old: Document) -> Document:
            scaled = options.subresource == "scale"
            current = scale.to_scale(resource, old) if scaled else old
            return patched(resource, current, type, patch)

        return await self._write(resource, namespace, name, change, options)

    async def delete(
        self, resource: Resource, namespace: str, name: str, options: DeleteOptions
    ) -> Deleted:
        """Delete the object, or start its deletion if it has finalizers."""
        for _ in range(ATTEMPTS_MAX):
            head = self._head(resource, namespace, name)
            old = self.document(head.value)
            metadata.check(resource, old, options)
            new = metadata.held(resource, old, options.propagation, time=self._time())
            if new is None:
                value = await self._commits.remove(head, old, dry_run=options.dry_run)
            else:
                value = await self._commits.replace(head, old, new, dry_run=options.dry_run)
            if value is not None:
                return Deleted(value=value, uid=old["metadata"]["uid"], finished=new is None)
        raise conflict(resource, name)

    async def delete_collection(
        self,
        resource: Resource,
        namespace: str | None,
        *,
        labels: Selector | None = None,
        fields: FieldSelector | None = None,
        options: DeleteOptions,
    ) -> tuple[bytes, ...]:
        """Delete every object that matches now; returns the last state of each.

        An object that may not be deleted does not stop the others. Its error is raised when they
        are deleted.
        """
        entries = self.list(resource, namespace, labels=labels, fields=fields).entries
        ends: list[bytes | LabError] = []
        for first in range(0, len(entries), DELETED_AT_ONCE_MAX):
            async with asyncio.TaskGroup() as tasks:
                some = [
                    tasks.create_task(self._delete_entry(resource, entry, options))
                    for entry in entries[first : first + DELETED_AT_ONCE_MAX]
                ]
            ends += [end.result() for end in some]
        for end in ends:
            if isinstance(end, LabError) and not isinstance(end, NotFound):
                raise end
        return tuple(end for end in ends if isinstance(end, bytes))

    async def ensure_namespaces(self, names: Iterable[str]) -> None:
        """Create the namespaces that do not exist yet."""
        resource = self._namespaces
        identity = {"apiVersion": resource.api_version, "kind": resource.kind}
        for name in names:
            if self.store.get(resource.key("", name)) is None:
                document = {**identity, "metadata": {"name": name}}
                await self.create(resource, "", document, WriteOptions())

    async def edit(self, resource: Resource, namespace: str, name: str, edit: Edit) -> None:
        """Change an object on behalf of the service itself; raises ``NotFound``.

        For finalizers and owners, which the server must be able to remove even from an object that
        would not pass current validation.
        """
        for _ in range(ATTEMPTS_MAX):
            head = self._head(resource, namespace, name)
            old = self.document(head.value)
            new = preparation.to_maintain(resource, edit(old), old, time=self._time())
            if await self._commit(resource, head, old, new) is not None:
                return
        raise conflict(resource, name)

    async def _write(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        change: Callable[[Document], Document],
        options: WriteOptions,
    ) -> Written:
        check_subresource(resource, options.subresource)
        for _ in range(ATTEMPTS_MAX):
            head = self._head(resource, namespace, name)
            old = self.document(head.value)
            document = change(old)
            check_document(resource, document, old, options)
            new = preparation.to_update(resource, document, old, options, time=self._time())
            _admit(options, new, old)
            warnings = warnings_about(resource, document, options)
            value = await self._commit(resource, head, old, new, dry_run=options.dry_run)
            if value is not None:
                value = rendered(resource, value, options.subresource)
                return Written(value=value, warnings=warnings)
        raise conflict(resource, name)

    async def _apply(
        self, resource: Resource, namespace: str, name: str, config: Any, options: WriteOptions
    ) -> Written:
        check_subresource(resource, options.subresource)
        preparation.check_config(resource, config, options)
        warnings = warnings_about(resource, config, options)
        for _ in range(ATTEMPTS_MAX):
            head = self.store.head(resource.key(namespace, name))
            if head is None:
                value = await self._apply_new(resource, namespace, name, config, options)
            else:
                old = self.document(head.value)
                check_document(resource, config, old, options, applied=True)
                new = preparation.to_apply(resource, config, old, options, time=self._time())
                _admit(options, new, old)
                value = await self._commit(resource, head, old, new, dry_run=options.dry_run)
            if value is not None:
                value = rendered(resource, value, options.subresource)
                return Written(value=value, created=head is None, warnings=warnings)
        raise conflict(resource, name)

    async def _apply_new(
        self, resource: Resource, namespace: str, name: str, config: Any, options: WriteOptions
    ) -> bytes | None:
        if options.subresource:
            raise not_found(resource, name)
        metadata.check_place(config, namespace=namespace, name=name)
        place = self._enter(resource, namespace, name)
        new = preparation.to_apply_new(resource, config, place, options, time=self._time())
        _admit(options, new, None)
        key = resource.key(namespace, name)
        return await self._commits.create(key, new, dry_run=options.dry_run)

    async def _commit(
        self,
        resource: Resource,
        head: Entry,
        old: Document,
        new: Document,
        *,
        dry_run: bool = False,
    ) -> bytes | None:
        """The bytes of ``new``; removing the last finalizer of a deleted object removes it."""
        if metadata.is_finished(resource, new):
            return await self._commits.remove(head, new, dry_run=dry_run)
        return await self._commits.replace(head, old, new, dry_run=dry_run)

    async def _delete_entry(
        self, resource: Resource, entry: Entry, options: DeleteOptions
    ) -> bytes | LabError:
        namespace, _, name = entry.key.removeprefix(resource.prefix).partition("/")
        try:
            deleted = await self.delete(resource, namespace, name, options)
        except LabError as error:
            return error
        return deleted.value

    def _head(self, resource: Resource, namespace: str, name: str) -> Entry:
        head = self.store.head(resource.key(namespace, name))
        if head is None:
            raise not_found(resource, name)
        return head

    def _enter(self, resource: Resource, namespace: str, name: str) -> Place:
        """A place for a new object; its namespace must exist and not be terminating."""
        if resource.namespaced:
            found = self.store.head(self._namespaces.key("", namespace))
            if found is None:
                raise not_found(self._namespaces, namespace)
            if namespaces.is_terminating(self.document(found.value)):
                raise namespaces.no_entry(resource, name, namespace)
        return Place(namespace=namespace, name=name, uid=self._ids.uid())

    def _is_deleting(self, resource: Resource, namespace: str, name: str) -> bool:
        head = self.store.head(resource.key(namespace, name))
        return head is not None and metadata.is_deleting(self.document(head.value))

    def _time(self) -> str:
        return times.text(self._clock.now())


def _admit(options: WriteOptions, new: Document, old: Document | None) -> None:
    if options.admit is not None:
        options.admit(new, old)


def _prefix(resource: Resource, namespace: str | None) -> str:
    if namespace is None or not resource.namespaced:
        return resource.prefix
    return f"{resource.prefix}{namespace}/"
