"""The place of the demo's store: a folder, or a bucket that all machines of a cluster can reach.

There are no options for credentials. Each process takes them from its environment.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nyala
from examples.flights.data import TABLES


@dataclass(frozen=True)
class Place:
    """path: a folder, or a URL such as s3://bucket/flights; options: the storage options of a URL."""

    path: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def in_bucket(self) -> bool:
        return "://" in self.path

    def connect(self, *, read_only: bool = False) -> nyala.Database:
        return nyala.connect(
            self.path, read_only=read_only, storage_options=self.options if self.in_bucket else None
        )

    @property
    def spark_options(self) -> dict[str, str]:
        """Return the options with which Spark finds the store."""
        path = self.path if self.in_bucket else str(Path(self.path).resolve())
        return {"path": path, **{f"storage.{name}": str(value) for name, value in self.options.items()}}

    @property
    def words(self) -> str:
        """Return the words for the command line, as in `nyala table list <words>`."""
        options = (f"--option {name}={str(value).lower()}" for name, value in self.options.items())
        return " ".join([shlex.quote(self.path), *options])


def clear_earlier_demo(place: Place) -> None:
    """Remove the store of an earlier run, or its tables in a bucket, and nothing else. Refuse if a
    process writes to it.
    """
    folder = Path(place.path)
    if not place.in_bucket and (not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))):
        return
    other = "Name another place: --store FOLDER, or --store URL"
    try:
        if not place.in_bucket:
            place.connect(read_only=True).close()  # raises an error if this folder has no store
        with place.connect() as db:  # refuses if another process is its writer
            tables = set(db.list_tables())
            strange = tables - set(TABLES)
            for name in tables if place.in_bucket and not strange else ():
                db.drop_table(name)
    except nyala.LockedError as error:
        raise SystemExit(f"error: {error}.\n       {other}") from None
    except (nyala.Error, OSError) as error:
        raise SystemExit(
            f"error: {place.path} exists and is not a store of this demo ({error}).\n       {other}"
        ) from None
    if strange:
        raise SystemExit(
            f"error: the store {place.path} has tables that are not this demo's ({', '.join(sorted(strange))}).\n"
            f"       {other}"
        )
    if place.in_bucket:
        if tables:
            print(f"Removed the tables of an earlier run in {place.path}.")
        return
    print(f"Removing the store of an earlier run in {folder}.")
    shutil.rmtree(folder)
