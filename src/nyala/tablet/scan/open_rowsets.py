"""Rowsets that a process of tasks leaves open from one scan token to the next.

    token ──► schema and files as JSON ──► the same text as before,     ──► the rowset as it was left
                                           and the same files there?    no ──► opened anew

Each statement over a table brings tokens of the same rowsets to the same few processes. What takes as long as a small
part of the scan itself need not be done for each: the text made into entries, footers read and decoded, deltas made
into patches. And blocks that are asked for often (`cfile.blocks.source`) stay, within CACHE_BYTES.

Invariants
    T1  A rowset is given again only while each of its files is the very file that was there when it was opened: another
        store may come to lie in the same folder, with files of the same names. The system tells (`Files.identity`).
    T2  Rowsets that no token asked for in IDLE_S are let go when the next one comes, and of more than ROWSETS_MAX the
        one asked for longest ago: the descriptor of a file that was removed keeps its space on the disk.

Thread-safety: every method may be called from any thread.
Cost: of a token whose rowsets are here, a look at each of their files.
"""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from nyala.cfile.blocks.cache import BlockCache
from nyala.env import Env
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.schema.schema import Schema
from nyala.tablet.state.entries import RowSetFiles

__all__ = ["CACHE_BYTES", "IDLE_S", "ROWSETS_MAX", "OpenRowSets"]

Key: TypeAlias = tuple[str, str, str]

# A task decodes most of its blocks once, so a small cache is enough.
CACHE_BYTES: Final = 64 << 20
# As long as Spark leaves a worker that has nothing to do.
IDLE_S: Final = 60.0
ROWSETS_MAX: Final = 256


@dataclass(frozen=True)
class _Open:
    """A rowset, what its files were when it was opened, and when it was last asked for."""

    rowset: DiskRowSet
    paths: tuple[str, ...]
    identities: tuple[object, ...]
    asked_s: float


class OpenRowSets:
    """See the module. One for each process that reads tokens."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cache = BlockCache(CACHE_BYTES)
        self._open: OrderedDict[Key, _Open] = OrderedDict()  # the one asked for longest ago first
        self._schemas: OrderedDict[str, Schema] = OrderedDict()

    def schema(self, fields: Mapping[str, Any]) -> tuple[str, Schema]:
        """A schema's own text, and the schema. Raises: as `Schema.from_json`."""
        text = json.dumps(fields)
        with self._lock:
            found = self._schemas.get(text)
        if found is None:
            found = Schema.from_json(text)
            with self._lock:
                self._schemas[text] = found
                while len(self._schemas) > ROWSETS_MAX:
                    self._schemas.popitem(last=False)
        return text, found

    def rowset(
        self, env: Env, root_path: str, fields: dict[str, Any], schema_text: str, schema: Schema
    ) -> DiskRowSet:
        """The rowset of `RowSetFiles.to_json`, in the store at `root_path`, with nothing in memory.

        Raises: as `RowSetFiles.from_json`; MissingFileError when one of its files is gone.
        """
        key = (root_path, schema_text, json.dumps(fields))
        now_s = env.clock.monotonic_s()
        with self._lock:
            found = self._open.pop(key, None)
            while self._open and next(iter(self._open.values())).asked_s < now_s - IDLE_S:
                self._open.popitem(last=False)
        if found is None or found.identities != _identities(env, found.paths):
            files = RowSetFiles.from_json(fields)
            entries = (files.rowset.path, *(e.path for e in files.parts), *(e.path for e in files.deltas))
            paths = tuple(os.path.join(root_path, path) for path in entries)
            # Looked at before a file is opened: what comes in between is seen at the next token.
            were = _identities(env, paths)
            found = _Open(files.open(env, root_path, self._cache, schema), paths, were, now_s)
        with self._lock:
            self._open[key] = _Open(found.rowset, found.paths, found.identities, now_s)
            self._open.move_to_end(key)
            while len(self._open) > ROWSETS_MAX:
                self._open.popitem(last=False)
        return found.rowset


def _identities(env: Env, paths: tuple[str, ...]) -> tuple[object, ...]:
    return tuple(env.files.identity(path) for path in paths)
