"""Reads and writes `nyala.json` and the checkpoints of the catalogue.

    nyala.json             the store's id, format version and time of creation
    checkpoints/<version>  the whole catalogue at one version

A folder with `nyala.json` is a store. Its catalogue is the newest checkpoint, changed by the change
records of the log with higher versions (`loading`). Without a checkpoint it begins empty.

Invariants
    K1  `nyala.json` is written once. Every other file of the store repeats its store id.
    K2  A checkpoint is written under a temporary name, synced and renamed. So it is whole or absent.
    K3  The log keeps all change records with higher versions than the newest checkpoint. Other log
        segments may be removed.

Source: docs/format/catalog.md.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from nyala.catalog.codec import decode_state, encode_state
from nyala.catalog.format import CHECKPOINTS_NAME, FORMAT_VERSION, IDENTITY_NAME
from nyala.catalog.model import CatalogState
from nyala.env import Env, Files, MissingFileError
from nyala.errors import CorruptionError, StorageError
from nyala.wal.format import Layout, check_store_id, crc32c

MAGIC: Final = b"NYALACKP"
CHECKPOINT: Final = Layout(
    "checkpoint header",
    (
        ("magic", "8s"),
        ("crc32c", "I"),
        ("format_version", "H"),
        ("reserved", "H"),
        ("store_id", "16s"),
        ("version", "Q"),
        ("length", "Q"),
        ("stored_length", "Q"),
        ("stored_crc32c", "I"),
        ("reserved_2", "I"),
    ),
)
LENGTH_MAX: Final = 1 << 30
_CODEC: Final = "zstd"
_NAME: Final = re.compile(r"\d{12,}")
_IDENTITY_BYTES_MAX: Final = 4096
_STORE_ID: Final = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True)
class StoreIdentity:
    """The content of `nyala.json`: the store's id, and the wall time of its creation."""

    store_id: str
    created_us: int

    def encode(self) -> bytes:
        fields = {"format_version": FORMAT_VERSION, "store_id": self.store_id, "created_us": self.created_us}
        return json.dumps({**fields, "crc32c": _crc(fields)}, indent=1).encode() + b"\n"

    @staticmethod
    def decode(data: bytes, path: str) -> StoreIdentity:
        """Decode and check `nyala.json`.

        Raises: CorruptionError; StorageError if the format version differs.
        """
        try:
            fields = json.loads(data)
            if "first_epoch" in fields:
                raise StorageError(
                    f"{os.path.dirname(path)} is a store in the layout for object storage. Connect with a URL such as "
                    "file:///folder, or copy the store with `nyala fs copy`",
                    path=path,
                )
            found = fields.pop("crc32c")
            version, store_id, created_us = fields["format_version"], fields["store_id"], fields["created_us"]
            expected = _crc(fields)
            if found != expected:
                raise ValueError(f"expected the checksum {expected}, found {found!r:.40}")
            if type(version) is not int or type(created_us) is not int or not _STORE_ID.fullmatch(store_id):
                raise ValueError(
                    "expected integers as format_version and created_us, and 32 hexadecimal digits as store_id; found "
                    f"{version!r:.40}, {created_us!r:.40} and {store_id!r:.40}"
                )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptionError(
                f"this file identifies the store, and it is damaged ({error!s:.200}): restore it from a backup",
                path,
            ) from error
        if version != FORMAT_VERSION:
            raise StorageError(
                f"the store {os.path.dirname(path)} has format version {version}, and this version of Nyala reads "
                f"version {FORMAT_VERSION}: "
                + (
                    "update Nyala (pip install --upgrade nyala)"
                    if version > FORMAT_VERSION
                    else "export its tables with the Nyala version that wrote them, and load them into a new "
                    "store"
                ),
                path=path,
            )
        if data != StoreIdentity(store_id, created_us).encode():
            raise CorruptionError(
                "this file was changed after Nyala wrote it: restore it from a backup", path
            )
        return StoreIdentity(store_id, created_us)

    def catalogue(self) -> CatalogState:
        """Return the first version of the store's catalogue, which is empty."""
        return CatalogState.empty(self.store_id, self.created_us)


def _crc(fields: dict[str, Any]) -> str:
    return f"{crc32c(json.dumps(fields, sort_keys=True).encode()):08x}"


def identity_path(directory: str) -> str:
    return os.path.join(directory, IDENTITY_NAME)


def write_identity(env: Env, directory: str) -> StoreIdentity:
    """Write `nyala.json` with a new store id, which makes the folder a store; return its content.

    Raises: StorageError if the folder is a store already, or if the file cannot be written.
    """
    path = identity_path(directory)
    if env.files.exists(path):
        raise StorageError(f"cannot create {path}: the folder is a store already: open it", path=path)
    identity = StoreIdentity(env.randomness.token_hex(16), env.clock.now_us())
    env.files.write_atomic(path, identity.encode())
    return identity


def read_identity(files: Files, directory: str) -> StoreIdentity:
    """Return the content of `nyala.json`: the store's id and the time of its creation.

    Raises: MissingFileError if the file is missing; CorruptionError if it is damaged; StorageError
        if another version of the format wrote it.
    """
    path = identity_path(directory)
    if files.size(path) > _IDENTITY_BYTES_MAX:
        raise CorruptionError(
            "this file identifies the store, and it is too long: restore it from a backup", path
        )
    return StoreIdentity.decode(files.read_all(path), path)


def checkpoint_path(directory: str, version: int) -> str:
    return os.path.join(directory, CHECKPOINTS_NAME, f"{version:012d}")


def checkpoint_versions(files: Files, directory: str) -> list[int]:
    """Return the versions of a store's checkpoints, oldest first."""
    names = files.list_dir(os.path.join(directory, CHECKPOINTS_NAME))
    return sorted(int(name) for name in names if _NAME.fullmatch(name))


def write_checkpoint(files: Files, directory: str, state: CatalogState) -> str:
    """Write and sync the whole catalogue as a new checkpoint; return the path of its file.

    Raises: StorageError.
    """
    path = checkpoint_path(directory, state.version)
    files.write_atomic(path, encode_checkpoint(state))
    return path


def encode_checkpoint(state: CatalogState) -> bytes:
    """Return the catalogue as the bytes of a checkpoint: a header and compressed JSON."""
    plain = encode_state(state)
    stored = pa.compress(plain, codec=_CODEC, asbytes=True)
    header = CHECKPOINT.encode(
        {
            "magic": MAGIC,
            "format_version": FORMAT_VERSION,
            "store_id": bytes.fromhex(state.store_id),
            "version": state.version,
            "length": len(plain),
            "stored_length": len(stored),
            "stored_crc32c": crc32c(stored),
        }
    )
    return bytes(header + stored)


def read_checkpoint(files: Files, path: str, store_id: str) -> CatalogState:
    """Return the catalogue in a checkpoint file.

    store_id: the id that the checkpoint must have.
    Raises: MissingFileError; CorruptionError if the file is damaged; StorageError.
    """
    return decode_checkpoint(files.read_all(path), path, store_id)


def decode_checkpoint(data: bytes, path: str, store_id: str) -> CatalogState:
    """Return the catalogue in the bytes of a checkpoint.

    path: where the bytes were read, for errors.
    store_id: the id that the checkpoint must have.
    Raises: CorruptionError; StorageError if the format version differs.
    """
    size = CHECKPOINT.size_bytes
    if data[: len(MAGIC)] != MAGIC:
        raise CorruptionError(f"expected a checkpoint, which starts with {MAGIC!r}", path, 0)
    header = CHECKPOINT.decode(data, 0, path, 0)
    if header["format_version"] != FORMAT_VERSION:
        raise StorageError(
            f"{path} has format version {header['format_version']}, and this version of Nyala reads version "
            f"{FORMAT_VERSION}: update Nyala (pip install --upgrade nyala)",
            path=path,
        )
    check_store_id(store_id, header["store_id"].hex(), path)
    stored = data[size:]
    if len(stored) != header["stored_length"] or header["length"] > LENGTH_MAX:
        raise CorruptionError(
            f"the checkpoint has {len(stored)} bytes after its header, expected {header['stored_length']}",
            path,
            size,
        )
    found = crc32c(stored)
    if found != header["stored_crc32c"]:
        raise CorruptionError(
            f"the checkpoint fails its checksum: expected {header['stored_crc32c']:08x}, found {found:08x}",
            path,
            size,
        )
    try:
        state = decode_state(pa.decompress(stored, header["length"], codec=_CODEC, asbytes=True))
    except (ValueError, OSError) as error:
        raise CorruptionError(str(error), path) from error
    if state.version != header["version"] or state.store_id != store_id:
        raise CorruptionError(
            f"the checkpoint contains version {state.version} of the catalogue of store {state.store_id}, but its "
            f"header names version {header['version']} of store {store_id}: restore the store from a backup",
            path,
        )
    return state


def newest_checkpoint(files: Files, directory: str, identity: StoreIdentity) -> CatalogState:
    """Return the catalogue in the newest checkpoint; an empty one if there is no checkpoint.

    Raises: CorruptionError if the checkpoint is damaged; StorageError.
    """
    while True:
        versions = checkpoint_versions(files, directory)
        if not versions:
            return identity.catalogue()
        path = checkpoint_path(directory, versions[-1])
        try:
            return read_checkpoint(files, path, identity.store_id)
        except MissingFileError:
            # The writer has just removed this checkpoint for a newer one: try again.
            if checkpoint_versions(files, directory) == versions:
                raise
