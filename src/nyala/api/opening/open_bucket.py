"""Opens stores in a bucket for `nyala.connect`."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, cast

from nyala.api.opening.open_store import Handle, OpenStore, share_or_open
from nyala.env import SYSTEM, Env
from nyala.errors import LockedError
from nyala.objects.address import Address, open_env, place_of
from nyala.objects.base import Objects
from nyala.objects.open import StorageOptions, open_objects
from nyala.objects.remote_files import RemoteFiles
from nyala.tablet.media.bucket_reader import BucketReader
from nyala.tablet.store import Store, StoreOptions

MEMORY_LIMIT_BYTES: Final = 1 << 30
_LOCK_POLL_S: Final = 1.0


def open_bucket_for_writing(
    url: str,
    options: StoreOptions,
    storage_options: StorageOptions | None,
    cache_dir: str | None,
    cache_bytes: int | None,
    group_interval_s: float,
    take_over: bool,
) -> Handle:
    """Return a handle of the store, and open the store unless this process has it open.

    Raises: LockedError if another process seems to be the writer, unless `take_over`;
        InvalidArgumentError if the store is open with other options; the errors of
        `Store.open_in_bucket`.
    """

    def open_new() -> Store:
        clock = SYSTEM.clock
        deadline_s = clock.monotonic_s() + options.lock_timeout_s
        while True:
            env, objects = _reached(url, storage_options, cache_dir, cache_bytes)
            try:
                return Store.open_in_bucket(env, objects, options, group_interval_s, take_over=take_over)
            except LockedError:
                if clock.monotonic_s() >= deadline_s:
                    raise
            # Ctrl-C takes effect during the next try (`open_in_bucket`).
            clock.sleep_s(min(_LOCK_POLL_S, max(0.0, deadline_s - clock.monotonic_s())))

    return share_or_open(
        place_of(url, storage_options),
        url,
        options,
        lambda registration: OpenStore(open_new(), registration, options),
    )


def open_bucket_for_reading(
    url: str,
    memory_limit_bytes: int,
    storage_options: StorageOptions | None,
    cache_dir: str | None,
    cache_bytes: int | None,
    refresh_s: float,
) -> Handle:
    """Open the store for reading only, and return its handle. Raises: as `BucketReader.open`."""
    env, objects = _reached(url, storage_options, cache_dir, cache_bytes)
    return OpenStore(BucketReader.open(env, objects, memory_limit_bytes, refresh_s)).handle()


def open_address_for_reading(address: Address) -> Handle:
    """Open the store at an address for reading, with the credentials of this process (`objects.address`).

    Raises: as `BucketReader.open`.
    """
    files = cast(RemoteFiles, address.env.files).client()
    env = replace(address.env, files=files)
    return OpenStore(BucketReader.open(env, files.objects, MEMORY_LIMIT_BYTES, 0.0)).handle()


def _reached(
    url: str, storage_options: StorageOptions | None, cache_dir: str | None, cache_bytes: int | None
) -> tuple[Env, Objects]:
    """Return (env, objects) of the bucket at a URL. `env` reads the objects as files, through the cache."""
    objects = open_objects(url, storage_options)
    return open_env(objects, cache_dir, cache_bytes), objects
