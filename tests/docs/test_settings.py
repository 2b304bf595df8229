"""docs/how-to/settings.md and errors.md list exactly the keywords, defaults, exceptions and row codes of the code."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nyala
from nyala import errors
from nyala.schema import schema
from nyala.schema.limits import DEFAULT_LIMITS

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
SETTINGS = (HOW_TO / "settings.md").read_text()
ERRORS = (HOW_TO / "errors.md").read_text()
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "nyala.connect": nyala.connect,
    "Database.create_table": nyala.Database.create_table,
    "nyala.column": nyala.column,
    "nyala.hash_partition": nyala.hash_partition,
    "nyala.range_partition": nyala.range_partition,
    "Table.scan": nyala.Table.scan,
}


def section(text: str, heading: str) -> str:
    """Return the text under a heading of the second level."""
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no heading {heading!r}"
    return found[1]


def rows(text: str) -> list[list[str]]:
    """Return the cells of the table rows that begin with code."""
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def keywords(function: Callable[..., Any]) -> list[tuple[str, str]]:
    return [
        (f"`{name}`", "required" if parameter.default is parameter.empty else f"`{parameter.default!r}`")
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "self"
    ]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_keyword_and_default_is_on_the_page(name: str) -> None:
    assert [(row[0], row[1]) for row in rows(section(SETTINGS, name))] == keywords(FUNCTIONS[name])


def test_every_keyword_of_the_writes_is_on_the_page() -> None:
    """insert, upsert, update and delete have the same keywords."""
    stated = {
        (name, row[1]) for row in rows(section(SETTINGS, "Writes")) for name in re.findall(r"`\w+`", row[0])
    }
    table = nyala.Table
    taken = {pair for f in (table.insert, table.upsert, table.update, table.delete) for pair in keywords(f)}
    data = {"`data`", "`keys`"}
    assert stated == {pair for pair in taken if pair[0] not in data}


def test_the_limits_on_the_pages_are_those_of_the_code() -> None:
    assert f"At most {DEFAULT_LIMITS.max_columns} columns" in SETTINGS
    assert f"at most {DEFAULT_LIMITS.max_identifier_bytes} bytes of UTF-8" in SETTINGS
    assert f"{schema.MIN_BLOCK_SIZE_BYTES} to {schema.MAX_BLOCK_SIZE_BYTES:,}" in SETTINGS
    assert f"a cell above {DEFAULT_LIMITS.max_cell_bytes:,} bytes" in ERRORS
    assert f"above {DEFAULT_LIMITS.max_key_bytes:,} bytes" in ERRORS
    for compression in schema.COMPRESSIONS:
        assert f'"{compression}"' in SETTINGS or compression == "default"
    for kind in ("int64", "string", "double", "bool"):
        for encoding in schema.allowed_encodings(schema.parse_type(kind)):
            assert f'"{encoding}"' in SETTINGS


def test_every_error_is_on_the_page_with_its_bases() -> None:
    stated = {row[0].strip("`"): re.findall(r"`(\w+)`", row[1]) for row in rows(section(ERRORS, "Classes"))}
    classes = {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.Error)
    }
    assert list(stated) == list(classes)
    for name, kind in classes.items():
        assert [base.__name__ for base in kind.__bases__ if base is not errors.Error] == stated[name], name
        assert getattr(nyala, name) is kind


def test_every_row_code_is_on_the_page_with_its_class() -> None:
    stated = [
        (row[0].strip("`"), row[1].strip("`")) for row in rows(section(ERRORS, "Codes of failing rows"))
    ]
    made = [(code, type(errors.write_error({code}, "", None)).__name__) for code in errors.ROW_ERROR_CODES]
    assert stated == made
