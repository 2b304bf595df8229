"""Damage to `catalog.sqlite`: each is CorruptionError, or provably changed nothing. Never another state.

SQLite itself finds little of it: it has no checksums in its pages.
"""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path
from types import MappingProxyType

import pytest
from tests.sampled import one_of

from nyala.catalog.format import GARBAGE, PLACES, ROWSETS, SHAPES, SUMS, Row, TableShape
from nyala.catalog.model import (
    CatalogChange,
    CatalogState,
    CommittedKey,
    DeltaEntry,
    DroppedRange,
    PartEntry,
    RowSetEntry,
    TableEntry,
    TabletEntry,
)
from nyala.catalog.store import Catalog
from nyala.cfile.column import ColumnKey, ColumnPlace
from nyala.env import SYSTEM
from nyala.errors import CorruptionError, StorageError
from nyala.partition.model import HashLevel, Partition, PartitionSchema
from nyala.schema.schema import build_schema

ROWSET_COUNT = 40


def some_change() -> CatalogChange:
    """Enough for trees of several pages: a table with 4 tablets, 40 rowsets of 6 columns, deltas, garbage."""
    schema = build_schema({"carrier": "string", "flight": "int16", "delay": "double"}, ["carrier", "flight"])
    places = tuple(ColumnPlace(ColumnKey(0, 0, 10 + n), 1000 * n, 77) for n in range(6))
    return CatalogChange(
        timestamp=1000,
        put_tables=[
            TableEntry(
                1,
                "flights",
                "c",
                604800,
                schema,
                MappingProxyType({0: schema}),
                PartitionSchema((HashLevel((11,), 4),), (10,)),
                schema_since=MappingProxyType({0: 7}),
                dropped=(DroppedRange(None, b"a", 7, 9), DroppedRange(b"a", b"c", 8, 9)),
            )
        ],
        put_tablets=[
            TabletEntry(n, 1, Partition((n - 1,), None, b"\x70" if n % 2 else None), n) for n in range(1, 5)
        ],
        put_rowsets=[
            RowSetEntry(
                n,
                1 + n % 4,
                n,
                b"a%d" % n,
                b"b%d" % n,
                n,
                f"data/{n % 4}/{n}.base",
                f"{n:032x}",
                10 * n,
                places,
            )
            for n in range(1, ROWSET_COUNT + 1)
        ],
        put_parts=[
            PartEntry(20 + n, n, f"data/{n % 4}/{20 + n}.part", f"{100 + n:032x}", 9, places[:2])
            for n in range(1, 5)
        ],
        put_deltas=[
            DeltaEntry(
                n, n, "undo", f"data/{n % 4}/{n}.undo", f"{200 + n:032x}", 9, 1, n, 3, (-1,), places[:3]
            )
            for n in range(1, 9)
        ],
        garbage=[f"wal/{n:06}.log" for n in range(1, 30)],
        committed_keys=[CommittedKey(f"job-{n}", n, '{"rows": 1}') for n in range(20)],
    )


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, CatalogState]:
    """A whole catalogue as one file, and the state in it."""
    path = tmp_path_factory.mktemp("original") / "catalog.sqlite"
    with Catalog.create(SYSTEM, str(path)) as catalog:
        catalog.commit(some_change())
        # A hole in the middle and a second version, so that there are free pages and free room in pages.
        state = catalog.commit(
            CatalogChange(
                drop_rowsets=[20, 21, 22],
                collected=[f"wal/{n:06}.log" for n in range(5, 25)],
                timestamp=1001,
            )
        )
    return path.read_bytes(), state


def outcome(path: Path, state: CatalogState, read_only: bool) -> str:
    """ "damage", "same", or an exception for everything that must not be."""
    try:
        catalog = Catalog.open(SYSTEM, str(path), read_only=read_only)
    except CorruptionError as error:
        assert str(path) in str(error)
        return "damage"
    try:
        with catalog:
            found = catalog.load()
    except CorruptionError as error:
        assert str(path) in str(error)
        return "damage"
    assert found == state
    return "same"


def load(path: Path, *, read_only: bool = False, at_least: int = 0) -> CatalogState:
    with Catalog.open(SYSTEM, str(path), read_only=read_only) as catalog:
        return catalog.load(at_least=at_least)


def put(folder: Path, content: bytes) -> Path:
    path = folder / "catalog.sqlite"
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    path.write_bytes(content)
    return path


def test_an_untouched_copy_is_the_same(original: tuple[bytes, CatalogState], tmp_path: Path) -> None:
    content, state = original
    assert outcome(put(tmp_path, content), state, read_only=True) == "same"
    assert outcome(put(tmp_path, content), state, read_only=False) == "same"


def test_a_flipped_bit_anywhere_in_the_file(
    original: tuple[bytes, CatalogState], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """No disk error in the catalogue makes rows appear, vanish or move."""
    content, state = original
    chance = random.Random(int(request.config.getoption("hypothesis_seed")))
    header = range(100)
    # The first bytes of each page hold its kind, its row count and the places of its rows.
    pages = [page + n for page in range(0, len(content), 4096) for n in one_of(4, range(24), request)]
    anywhere = chance.sample(range(len(content)), 100)
    found = {"damage": 0, "same": 0}
    for offset in dict.fromkeys((*header, *pages, *anywhere)):
        bit = chance.randrange(8)
        damaged = bytearray(content)
        damaged[offset] ^= 1 << bit
        try:
            found[outcome(put(tmp_path, bytes(damaged)), state, read_only=chance.random() < 0.5)] += 1
        except BaseException as error:
            error.add_note(f"bit {bit} of byte {offset} (byte {offset % 4096} of page {offset // 4096 + 1})")
            raise
    assert found["damage"] > 60 and found["same"] > 0, found


def test_a_damaged_text_in_what_sqlite_says(original: tuple[bytes, CatalogState], tmp_path: Path) -> None:
    """SQLite puts the damaged text into its message, where Python cannot decode it: still the right error."""
    content, state = original
    begin = content.index(b'CREATE TABLE "garbage"')
    for offset in range(begin, begin + 120):
        damaged = bytearray(content)
        damaged[offset] ^= 0x80
        assert outcome(put(tmp_path, bytes(damaged)), state, read_only=True) == "damage"


def test_a_cut_or_zeroed_file(original: tuple[bytes, CatalogState], tmp_path: Path) -> None:
    """A file cut short, or with a page of zeros or of another page's bytes, is never taken for a smaller store."""
    content, state = original
    page_count = len(content) // 4096
    for length in (1, 99, 100, 4095, 4096, 6000, len(content) // 2, len(content) - 4096, len(content) - 1):
        assert outcome(put(tmp_path, content[:length]), state, read_only=False) == "damage", length
    for page in range(page_count):
        for other in (bytes(4096), content[4096 * ((page + 1) % page_count) :][:4096]):
            damaged = content[: 4096 * page] + other + content[4096 * (page + 1) :]
            # A free page holds nothing.
            outcome(put(tmp_path, damaged), state, read_only=page % 2 == 0)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_row_deleted(original: tuple[bytes, CatalogState], tmp_path: Path, shape: TableShape) -> None:
    """A lost row of any table is missed."""
    content, state = original
    name, key = shape.name, shape.column_names[0]
    path = put(tmp_path, content)
    edit(path, f"DELETE FROM {name} WHERE {key} = (SELECT max({key}) FROM {name})")
    assert outcome(path, state, read_only=True) == "damage"


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_value_changed(original: tuple[bytes, CatalogState], tmp_path: Path, shape: TableShape) -> None:
    """Another value in any column of any table, or the same in another type, is noticed."""
    content, state = original
    name = shape.name
    key = shape.column_names[0]
    for column, kind in (*shape.columns, ("crc", "INTEGER")):
        changed = f"{column} + 100" if kind.startswith("INTEGER") else f"{column} || 'x'"
        if column == "range_lower" or column == "range_upper":
            changed = f"ifnull({column}, x'') || x'00'"
        path = put(tmp_path, content)
        edit(path, f"UPDATE {name} SET {column} = {changed} WHERE {key} = (SELECT max({key}) FROM {name})")
        assert outcome(path, state, read_only=True) == "damage", column


@pytest.mark.parametrize(
    "sql",
    [
        # doubled under another id, with the old checksum
        "INSERT INTO rowsets SELECT 99, tablet_id, row_count, key_min, key_max, deltas_durable, path, "
        "file_id, size_bytes, schema_version, crc FROM rowsets WHERE id = 7",
        # two rows exchanged
        "UPDATE tablets SET inserts_durable = 5 - inserts_durable",
        # values moved between columns or tables
        "UPDATE deltas SET timestamp_min = timestamp_max, timestamp_max = timestamp_min",
        "INSERT INTO garbage SELECT key, timestamp, crc FROM committed_keys WHERE key = 'job-1'",
        # text instead of bytes, real instead of integer
        "UPDATE rowsets SET key_min = CAST(key_min AS TEXT) WHERE id = 3",
        "UPDATE places SET length = 77.5 WHERE owner_id = 3",
        "UPDATE tables SET history_us = NULL",
        # tables, indexes and triggers that are not ours
        "DROP TABLE committed_keys",
        "CREATE TABLE mine (a)",
        "CREATE INDEX mine ON rowsets (path)",
        "CREATE TRIGGER mine AFTER INSERT ON rowsets BEGIN DELETE FROM garbage; END",
        "ALTER TABLE rowsets ADD COLUMN mine INTEGER",
        "PRAGMA application_id = 1",
        "PRAGMA user_version = 0",
        "PRAGMA journal_mode = DELETE",
    ],
)
def test_an_edit_by_hand(original: tuple[bytes, CatalogState], tmp_path: Path, sql: str) -> None:
    """Whoever edits the catalogue with another tool is told so, before it does harm."""
    content, state = original
    path = put(tmp_path, content)
    edit(path, sql)
    assert outcome(path, state, read_only=False) == "damage"


def test_C2_rows_with_good_checksums_that_do_not_belong(
    original: tuple[bytes, CatalogState], tmp_path: Path
) -> None:
    """A row deleted and another doubled, both with good checksums: the table's sum tells."""
    content, state = original
    path = put(tmp_path, content)
    row = (99, 1, 1, b"a", b"b", 1, "data/1/99.base", "f" * 32, 1, 0)
    edit(path, "DELETE FROM rowsets WHERE id = 7")
    edit(path, f"INSERT INTO rowsets VALUES ({','.join('?' * 11)})", (*row, *ROWSETS.crcs([row])))
    with pytest.raises(CorruptionError, match="table rowsets has 37 rows with CRC sum"):
        load(path)
    assert state.version == 3


def test_C3_a_table_of_an_older_version(original: tuple[bytes, CatalogState], tmp_path: Path) -> None:
    """A page that the disk never wrote, with its rows and its sum as they were: the version tells."""
    content, _ = original
    path = put(tmp_path, content)
    raw = sqlite3.connect(path)
    name, _, count, total, _ = raw.execute("SELECT * FROM sums WHERE name = 'garbage'").fetchone()
    raw.close()
    old = (name, 2, count, total)
    edit(path, "UPDATE sums SET version = 2, crc = ? WHERE name = 'garbage'", tuple(SUMS.crcs([old])))
    with pytest.raises(CorruptionError, match=r"different versions \['2', '3'\]"):
        load(path)


@pytest.mark.parametrize(
    ("shape", "row", "reason"),
    [
        (PLACES, (0, 777, 0, 0, 0, 10, 0, 1), r"places of rowsets \[777\]"),
        (PLACES, (0, 1, 7, 0, 0, 10, 0, 1), r"place 7 of owner \(0, 1\) follows 6 places"),
        (PLACES, (-1, 1, 0, 0, 0, 10, 0, 1), "owner of kind -1"),
        (
            ROWSETS,
            (99, 77, 1, b"a", b"b", 1, "data/1/99.base", "f" * 32, 1, 0),
            "M1: rowset 99 belongs to tablet 77",
        ),
        (GARBAGE, ("../../home", 1), "M4: the path '../../home' does not stay inside"),
    ],
    ids=["orphan", "gap", "kind", "reference", "path"],
)
def test_rows_that_make_no_catalogue(
    original: tuple[bytes, CatalogState], tmp_path: Path, shape: TableShape, row: Row, reason: str
) -> None:
    """Good checksums over nonsense (a tool that makes them, a mistake of ours): still not loaded."""
    content, state = original
    path = put(tmp_path, content)
    (crc,) = shape.crcs([row])
    edit(path, shape.insert_sql, (*row, crc))
    raw = sqlite3.connect(path)
    ((count, total),) = raw.execute("SELECT row_count, crc_sum FROM sums WHERE name = ?", (shape.name,))
    raw.close()
    sums = (shape.name, state.version, count + 1, total + crc)
    edit(path, "DELETE FROM sums WHERE name = ?", (shape.name,))
    edit(path, SUMS.insert_sql, (*sums, *SUMS.crcs([sums])))
    with pytest.raises(CorruptionError, match=reason):
        load(path)


def test_the_writer_finds_damage_that_no_row_shows(
    original: tuple[bytes, CatalogState], tmp_path: Path
) -> None:
    """The list of free pages is damaged: readers lose nothing, but what is written next would be spoilt."""
    content, state = original
    damaged = bytearray(content)
    damaged[39] ^= 1  # the number of free pages
    path = put(tmp_path, bytes(damaged))
    assert outcome(path, state, read_only=True) == "same"
    assert outcome(path, state, read_only=False) == "damage"


def edit(path: Path, sql: str, values: tuple[object, ...] = ()) -> None:
    raw = sqlite3.connect(path, isolation_level=None)
    raw.execute(sql, values)
    raw.close()


# --- SQLite's own log -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def with_log(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes, list[CatalogState]]:
    """The file and the log of a killed writer, and every state that it committed."""
    path = tmp_path_factory.mktemp("with_log") / "catalog.sqlite"
    states = []
    with Catalog.create(SYSTEM, str(path)) as catalog:
        states.append(catalog.state)
        states.append(catalog.commit(some_change()))
        for n in range(4):
            states.append(catalog.commit(CatalogChange(timestamp=1001 + n, garbage=[f"old/{n}"])))
        return path.read_bytes(), path.with_name("catalog.sqlite-wal").read_bytes(), states


def test_a_flipped_bit_in_the_log_is_never_a_mixture(
    with_log: tuple[bytes, bytes, list[CatalogState]], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """SQLite drops what follows a damaged frame: whole transactions; and who knows the version notices."""
    content, log, states = with_log
    chance = random.Random(int(request.config.getoption("hypothesis_seed")))
    older = 0
    for offset in dict.fromkeys((*range(56), *chance.sample(range(len(log)), 100))):
        damaged = bytearray(log)
        damaged[offset] ^= 1 << chance.randrange(8)
        path = put(tmp_path, content)
        path.with_name("catalog.sqlite-wal").write_bytes(damaged)
        try:
            with Catalog.open(SYSTEM, str(path)) as catalog:
                found = catalog.load()
        except CorruptionError:
            continue
        assert found == states[found.version - 1]
        if found.version < len(states):
            older += 1
            path = put(tmp_path, content)
            path.with_name("catalog.sqlite-wal").write_bytes(damaged)
            with pytest.raises(CorruptionError, match="but version 6 was committed"):
                load(path, read_only=True, at_least=states[-1].version)
    assert older > 40


def test_a_log_cut_anywhere_loses_whole_transactions(
    with_log: tuple[bytes, bytes, list[CatalogState]], tmp_path: Path
) -> None:
    """A power cut while SQLite writes its log takes the unfinished transaction with it, and only that."""
    content, log, states = with_log
    versions = []
    for length in (0, 16, 32, 500, *range(32, len(log) + 1, 4096 + 24)):
        path = put(tmp_path, content)
        path.with_name("catalog.sqlite-wal").write_bytes(log[:length])
        with Catalog.open(SYSTEM, str(path)) as catalog:
            found = catalog.load()
        assert found == states[found.version - 1]
        versions.append(found.version)
    assert versions == sorted(versions) and set(versions) == set(range(1, len(states) + 1))


def test_not_readable_is_not_damage(original: tuple[bytes, CatalogState], tmp_path: Path) -> None:
    """A missing right or a folder in the way is told as that: nobody should begin to repair."""
    path = tmp_path / "catalog.sqlite"
    path.mkdir()
    with pytest.raises(StorageError):
        Catalog.open(SYSTEM, str(path))
    assert original
