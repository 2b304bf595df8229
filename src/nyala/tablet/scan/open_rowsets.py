"""Keeps rowsets open from one scan token to the next, in a process that reads tokens.

A process such as a worker of Spark reads many tokens of the same rowsets. To open a rowset (parse
its description, decode footers, find its changes) can take as long as a small scan. So a rowset is
opened once, and a later token with the same description uses the open rowset. Often used blocks
stay in a cache of CACHE_BYTES.

Invariants
    T1  A rowset is reused only while each of its files is still the file that was opened. A new
        store in the same folder can have files of the same names: `Files.identity` differs then.
    T2  A rowset that was not used for IDLE_S seconds is released at the next token. If more than
        ROWSETS_MAX are kept, the least recently used are released. Otherwise deleted files would
        take disk space, because a file takes space as long as it is open.

Any thread may call every method.
Cost: one stat call per file for a token with open rowsets.
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

Key: TypeAlias = tuple[str, str, str]

# Small, because a task of Spark decodes most blocks only once.
CACHE_BYTES: Final = 64 << 20
# As long as Spark keeps an idle worker process.
IDLE_S: Final = 60.0
ROWSETS_MAX: Final = 256


@dataclass(frozen=True)
class _OpenRowSet:
    """A rowset that is kept open.

    paths:      the paths of its files.
    identities: for each file, a value from `Files.identity`, taken before the file was opened. It
                changes if another file replaces the file under the same path.
    used_s:     when the rowset was last used.
    """

    rowset: DiskRowSet
    paths: tuple[str, ...]
    identities: tuple[object, ...]
    used_s: float


class OpenRowSets:
    """The rowsets that one process keeps open between scan tokens."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cache = BlockCache(CACHE_BYTES)
        self._open: OrderedDict[Key, _OpenRowSet] = OrderedDict()  # least recently used first
        self._schemas: OrderedDict[str, Schema] = OrderedDict()

    def schema(self, fields: Mapping[str, Any]) -> tuple[str, Schema]:
        """Parse a schema, or return it from a cache.

        fields: the schema as a JSON object.
        Returns: the schema as JSON text, which is an argument of `rowset`; and the parsed schema.
        Raises: the errors of `Schema.from_json`.
        """
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
        """Return the open rowset with these files, without changes that are only in memory.

        root_path: the folder of the store.
        fields: the rowset, as `RowSetFiles.to_json` returns it.
        schema_text, schema: the table's schema as JSON text, by which a cached rowset is found; and
            the same schema as an object, with which the files are opened.
        Raises: the errors of `RowSetFiles.from_json`; MissingFileError if one of its files is gone.
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
            # Before the files are opened: if one is replaced in between, the next token detects it.
            were = _identities(env, paths)
            found = _OpenRowSet(files.open(env, root_path, self._cache, schema), paths, were, now_s)
        with self._lock:
            self._open[key] = _OpenRowSet(found.rowset, found.paths, found.identities, now_s)
            self._open.move_to_end(key)
            while len(self._open) > ROWSETS_MAX:
                self._open.popitem(last=False)
        return found.rowset


def _identities(env: Env, paths: tuple[str, ...]) -> tuple[object, ...]:
    return tuple(env.files.identity(path) for path in paths)
