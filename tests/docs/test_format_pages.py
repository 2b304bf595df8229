"""docs/format/{store,staging,token}.md match the code, and tests that pages name exist.

NYALA_REWRITE=1 writes the worked examples into the pages and compares nothing: review the difference.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import google_crc32c
import pyarrow as pa
import pytest

import nyala
from nyala.api.scan import read_token
from nyala.api.scan_arguments import make_spec
from nyala.catalog import format as catalog_format
from nyala.env import Env, PosixFiles
from nyala.errors import CorruptionError
from nyala.handover import commits as handover
from nyala.tablet.jobs import staged_files, staging
from nyala.tablet.scan import token
from nyala.tablet.state import store_folder as layout
from nyala.testing import ManualClock, SeededRandomness
from nyala.wal.format import POSITION_FILE, segment_name
from tests.support import compact_deltas, key_value_table, open_database

ROOT = Path(__file__).parents[2]
FORMAT = ROOT / "docs" / "format"
REWRITE = bool(os.environ.get("NYALA_REWRITE"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def compare_examples(page: Path, examples: list[str]) -> None:
    """Check that these texts are the fenced blocks of the page, in this order."""
    text = page.read_text()
    if REWRITE:
        left = iter(examples)
        page.write_text(FENCE.sub(lambda match: f"```{match[1]}\n{next(left)}\n```", text))
        return
    assert [body.rstrip("\n") for _, body in FENCE.findall(text)] == examples


# ---- store.md ------------------------------------------------------------------------------------------------


def stated_paths() -> list[str]:
    return re.findall(r"^\| `([^`]+)` \|", (FORMAT / "store.md").read_text(), re.MULTILINE)


def pattern_of(path: str) -> re.Pattern[str]:
    words = {
        "<number>": r"\d+",
        "<key>": "[0-9a-f]{14}-(?:[0-9a-f]{40}-)?[0-9a-f]{32}",
        "<token>": "[0-9a-f]{16}",
        "<name>": "[^/]+",
    }
    escaped = re.sub(r"<\w+>|[^<]+", lambda m: words.get(m[0], re.escape(m[0])), path)
    return re.compile(escaped)


def test_the_page_lists_every_file_of_a_store(tmp_path: Path) -> None:
    db = open_database(tmp_path / "s")
    table = key_value_table(db)
    table.insert({"k": [1], "v": [1]})
    db.flush()
    table.update({"k": [1], "v": [2]})
    db.flush()
    for k in (2, 3):  # two more rowsets with the same keys, and a change in each, cause a merging compaction
        table.insert({"k": [k, k + 10], "v": [1, 1]})
        db.flush()
    table.compact()
    names = ["k", *(f"c{number}" for number in range(20))]
    wide = db.create_table("w", dict.fromkeys(names, "int64"), "k")
    wide.insert({name: [1] for name in names})
    db.flush()
    wide.update({"k": [1], "c7": [2]})
    wide.compact()  # a change of few columns of one rowset causes a part with its UNDO
    for value in range(4):
        table.update({"k": [3], "v": [value]})
        db.flush()
    compact_deltas(db._writer())
    table.update({"k": [3], "v": [9]})
    db.flush()
    other = key_value_table(db, "u")
    other.insert({"k": [1], "v": [1]})
    db.flush()
    table.insert({"k": [22], "v": [2]})
    _, folder = handover.new_staging(str(tmp_path / "s"))
    part = pa.record_batch({"k": [3], "v": [3]})
    staged_files.write_staged(nyala.env.SYSTEM, f"{folder}/part-0.arrow", part.schema, iter([part]))
    lease = handover.remote_lease(str(tmp_path / "s"), 60)
    reader = nyala.connect(tmp_path / "s", read_only=True)
    found = [
        str(path.relative_to(tmp_path / "s")) for path in (tmp_path / "s").rglob("*") if not path.is_dir()
    ]
    reader.close()
    lease.release()
    db.close()
    patterns = [pattern_of(path) for path in stated_paths()]
    for path in found:
        assert sum(bool(pattern.fullmatch(path)) for pattern in patterns) == 1, path
    for pattern in patterns:
        assert any(pattern.fullmatch(path) for path in found), pattern.pattern


def test_file_names_on_the_page_are_those_of_the_code() -> None:
    stated = stated_paths()
    for name in (catalog_format.IDENTITY_NAME, catalog_format.LOCK_NAME, catalog_format.SOCKET_NAME):
        assert name in stated
    assert any(pattern_of(path).fullmatch(f"{layout.WAL_NAME}/{segment_name(7)}") for path in stated)
    assert f"{layout.WAL_NAME}/{POSITION_FILE}" in stated and layout.POSITION_NAME == POSITION_FILE
    for name in (
        layout.DATA_NAME,
        layout.STAGING_NAME,
        catalog_format.LEASES_NAME,
        catalog_format.CHECKPOINTS_NAME,
    ):
        assert any(path.startswith(f"{name}/") for path in stated)


def test_a_store_opens_after_a_kill(tmp_path: Path) -> None:
    """The killed writer left its lock, socket and position record, and a reader its lease."""
    script = (
        "import nyala, os, sys; db = nyala.connect(sys.argv[1], maintenance=False);"
        "t = db.create_table('t', {'k': 'int64', 'v': 'int64'}, 'k'); t.insert({'k': [1], 'v': [1]});"
        "r = nyala.connect(sys.argv[1], read_only=True); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "s")], check=False)
    left = {path.name.partition("-")[0] for path in (tmp_path / "s").rglob("*")}
    assert {"lock", "writer.sock", "position", "reader", "wal"} <= left
    with nyala.connect(tmp_path / "s", maintenance=False) as db:
        assert db["t"].count() == 1
        db["t"].insert({"k": [2], "v": [2]})
        db.flush()
        db._writer().collect_garbage()
        assert not list((tmp_path / "s" / "leases").iterdir())
        assert json.loads((tmp_path / "s" / "lock").read_text())["pid"] == os.getpid()


# ---- staging.md ----------------------------------------------------------------------------------------------


class _FixedRandomness(SeededRandomness):
    def token_hex(self, byte_count: int) -> str:
        return "00112233445566778899aabbccddeeff"[: 2 * byte_count]


def staged_example(folder: Path) -> list[str]:
    """Return the fenced blocks of the page: the folder's name, and the beginning and end of a staged file."""
    nyala.connect(folder / "s").close()
    env = Env(PosixFiles(), ManualClock(), _FixedRandomness())
    key, made = handover.new_staging(str(folder / "s"), 3600, env)
    rows = pa.record_batch({"k": pa.array([1, 2, 3], pa.int64())})
    staged_files.write_staged(env, f"{made}/part-00000-0.arrow", rows.schema, iter([rows]))
    data = (Path(made) / "part-00000-0.arrow").read_bytes()
    assert Path(made).relative_to(folder / "s") == Path("staging") / key
    lines = [
        f"{0:>4}    {data[:16].hex(' ')}  the stream begins: schema message",
        f"{len(data) - 12:>4}    {data[-12:-4].hex(' '):<47}  it ends: end of stream",
        f"{len(data) - 4:>4}    {data[-4:].hex(' '):<47}  crc32c",
    ]
    return [f"staging/{key}/", "\n".join(lines)]


def test_examples_of_the_staging_page(tmp_path: Path) -> None:
    """A program can stage rows by following the page."""
    compare_examples(FORMAT / "staging.md", staged_example(tmp_path))


def test_a_staging_folder_named_by_the_pages_rules_is_kept_until_it_expires(tmp_path: Path) -> None:
    parts = re.findall(r"^\| `(\w+)` \| (\d+) \|", (FORMAT / "staging.md").read_text(), re.MULTILINE)[:4]
    name, _ = staged_example(tmp_path)
    expires, chance = name.removeprefix("staging/").rstrip("/").split("-")
    assert parts == [
        ("expires", str(len(expires))),
        ("owner", "40"),
        ("lease", "16"),
        ("token", str(len(chance))),
    ]
    owned, _ = handover.new_staging(str(tmp_path / "s"), owner="0" * 40)
    assert [len(part) for part in owned.split("-")] == [14, 40, 32]
    lease = handover.remote_lease(str(tmp_path / "s"), 60)
    leased, _ = handover.new_staging(str(tmp_path / "s"), lease=lease.name)
    assert leased.split("-")[1] == lease.name.removeprefix("remote-") and len(leased.split("-")[1]) == 16
    assert int(expires, 16) == ManualClock().now_us() + 3600 * 1_000_000
    folder = staging.staging_folder("s", f"{int(expires, 16):014x}-{'0' * 32}")
    assert folder.startswith("s/staging/")


def test_a_staged_file_without_its_end_is_refused(tmp_path: Path) -> None:
    """Otherwise a job could commit fewer rows than it wrote."""
    staged_example(tmp_path)
    path = next((tmp_path / "s" / "staging").rglob("*.arrow"))
    data = path.read_bytes()
    place = f"{path.parent.name}/{path.name}".encode()
    assert int.from_bytes(data[-4:], "little") == google_crc32c.value(place + data[:-4])
    assert pa.ipc.open_stream(data[:-4]).read_all().to_pydict() == {"k": [1, 2, 3]}
    path.write_bytes(data[:-1])
    job = {"files": [path.name], "columns": ["k"]}
    with pytest.raises(CorruptionError) as damage:
        staged_files.read_staged(nyala.env.SYSTEM, str(path.parent), job)
    assert path.name in str(damage.value)


# ---- token.md ------------------------------------------------------------------------------------------------


def example_token(folder: Path) -> bytes:
    db = open_database(folder / "s", clock=ManualClock())
    table = db.create_table("t", {"k": "int64", "v": "int32"}, "k")
    table.insert({"k": [1, 2], "v": [10, 20]})
    db.flush()
    table.update({"k": [1], "v": [11]})
    table.insert({"k": [3], "v": [30]})
    root, published = db._store.view()
    state = root.table("t")
    (made,) = token.make_tokens("/srv/store", state, make_spec(state, published, None, "v > 5", None, False))
    db.close()
    return made.data


def token_parts(data: bytes) -> tuple[list[tuple[int, int, str]], dict[str, Any], list[tuple[int, bytes]]]:
    """Parse a token by the page's rules. Returns the fields of the table, the JSON, and (offset, body) of each body."""
    text = (FORMAT / "token.md").read_text()
    fields = [
        (int(offset), int(size), name)
        for offset, size, name in re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` \|", text, re.MULTILINE)
    ]
    at, size, _ = fields[-1]
    (length,) = struct.unpack_from("<I", data, at)
    at += size
    meta = json.loads(data[at : at + length])
    at += length
    bodies = []
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        bodies.append((at, data[at + 8 : at + 8 + length]))
        at += 8 + length
    return fields, meta, bodies


def token_example(folder: Path) -> list[str]:
    data = example_token(folder)
    fields, meta, bodies = token_parts(data)
    lines = [f"{at:>5}    {data[at : at + size].hex(' '):<23}  {name}" for at, size, name in fields]
    at = fields[-1][0] + fields[-1][1]
    end = at + int.from_bytes(data[at - 4 : at], "little")
    lines.append(f"{at:>5}    {data[at : at + 8].hex(' ')}  … JSON, to byte {end - 1}")
    referred = {
        index: f"deltas of column {column}" for part in meta["rowsets"] for column, index in part["deltas"]
    }
    referred[meta["memory"]] = "rows in memory"
    for index, (offset, body) in enumerate(bodies):
        lines.append(f"{offset:>5}    {data[offset : offset + 8].hex(' ')}  length of body {index}")
        rows = pa.ipc.open_stream(body).read_all().to_pydict()
        shown = ", ".join(f"{name} {values}" for name, values in rows.items())
        lines.append(f"{offset + 8:>5}    {body[:8].hex(' ')}  … {referred[index]}: {shown}")
    rendered = ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in meta.items())
    return ["\n".join(lines), "{\n" + rendered + "\n}"]


def test_the_example_of_the_token_page_is_the_codes_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = SeededRandomness(7)
    monkeypatch.setattr(nyala.env.SystemRandomness, "token_hex", lambda _, count: drawn.token_hex(count))
    compare_examples(FORMAT / "token.md", token_example(tmp_path))


def test_the_tables_of_the_token_page_have_magic_version_and_fields(tmp_path: Path) -> None:
    data = example_token(tmp_path)
    fields, meta, _ = token_parts(data)
    head = struct.Struct("<8sIII")
    assert fields[-1][0] + fields[-1][1] == head.size
    magic, version, crc, _ = head.unpack_from(data)
    assert (magic, version, crc) == (token.MAGIC, token.VERSION, google_crc32c.value(data[16:]))
    text = (FORMAT / "token.md").read_text()
    assert f"`{token.MAGIC.decode()}`" in text and f"| `version` | {token.VERSION};" in text
    json_part, rowset_part = (
        text.split("## The JSON part")[1].split("## Bodies")[0].split("Each element of `rowsets`")
    )
    assert re.findall(r"^\| `(\w+)`", json_part, re.MULTILINE) == list(meta)
    named = [
        n
        for row in re.findall(r"^\| (`\w+`.*?) \|", rowset_part, re.MULTILINE)
        for n in re.findall(r"\w+", row)
    ]
    assert named == list(meta["rowsets"][0])


def test_the_token_of_the_page_can_be_read(tmp_path: Path) -> None:
    data = example_token(tmp_path)
    length = int.from_bytes(data[16:20], "little")
    text = data[20 : 20 + length].replace(b'"/srv/store"', json.dumps(str(tmp_path / "s")).encode())
    payload = struct.pack("<I", len(text)) + text + data[20 + length :]
    moved = token.MAGIC + struct.pack("<II", token.VERSION, google_crc32c.value(payload)) + payload
    found = pa.Table.from_batches(list(read_token(moved))).sort_by("k").to_pydict()
    assert found == {"k": [1, 2, 3], "v": [11, 20, 30]}


# ---- all pages -----------------------------------------------------------------------------------------------


def test_tests_that_pages_name_exist() -> None:
    missing = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for path, name in re.findall(r"`(tests/[\w/]+\.(?:py|txt))(?:::(\w+))?`", page.read_text()):
            file = ROOT / path
            if not file.exists() or (name and name not in _functions(file)):
                missing.append((page.name, path, name))
    assert missing == []


@functools.cache
def _functions(file: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


def test_the_index_links_to_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    assert [str(page) for page in pages if str(page) != "README.md" and str(page) not in index] == []
