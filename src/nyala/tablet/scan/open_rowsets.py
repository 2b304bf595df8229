"""Keeps rowsets open from one scan token to the next, in a process that reads tokens.

    token ──► schema and files as JSON ──► same text and same files?  yes ──► the open rowset
                                                                      no  ──► open it

Each statement over a table sends tokens of the same rowsets to the same few processes. Opening a
rowset (parsing its entry, decoding footers, preparing patches from deltas) can take as long as a
small part of the scan, so it is done once. Blocks that are often used (`cfile.blocks.source`) also
stay, within CACHE_BYTES.

Invariants
    T1  A rowset is reused only while each of its files is the very file that was opened. Another
        store may appear in the same folder with files of the same names. `Files.identity` detects
        that.
    T2  The next token closes rowsets that no token used for IDLE_S. If there are more than
        ROWSETS_MAX, the least recently used are closed: an open descriptor of a removed file keeps
        its disk space.

Thread-safety: every method may be called from any thread.
Cost: a token whose rowsets are open costs one stat call per file.
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
# Spark keeps an idle worker for the same time.
IDLE_S: Final = 60.0
ROWSETS_MAX: Final = 256


@dataclass(frozen=True)
class _Open:
    """A rowset, the identities of its files when they were opened, and the time of its last use."""

    rowset: DiskRowSet
    paths: tuple[str, ...]
    identities: tuple[object, ...]
    used_s: float


class OpenRowSets:
    """The open rowsets of one process; see the module."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cache = BlockCache(CACHE_BYTES)
        self._open: OrderedDict[Key, _Open] = OrderedDict()  # least recently used first
        self._schemas: OrderedDict[str, Schema] = OrderedDict()

    def schema(self, fields: Mapping[str, Any]) -> tuple[str, Schema]:
        """Return the schema and its JSON text. Raises: as `Schema.from_json`."""
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
        """Return the rowset that `RowSetFiles.to_json` describes, without changes in memory.

        root_path: the folder of the store.
        Raises: as `RowSetFiles.from_json`; MissingFileError if one of its files is gone.
        """
        key = (root_path, schema_text, json.dumps(fields))
        now_s = env.clock.monotonic_s()
        with self._lock:
            found = self._open.pop(key, None)
            while self._open and next(iter(self._open.values())).used_s < now_s - IDLE_S:
                self._open.popitem(last=False)
        if found is None or found.identities != _identities(env, found.paths):
            files = RowSetFiles.from_json(fields)
            entries = (files.rowset.path, *(e.path for e in files.parts), *(e.path for e in files.deltas))
            paths = tuple(os.path.join(root_path, path) for path in entries)
            # Taken before a file is opened, so that the next token detects a file replaced in
            # between.
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
