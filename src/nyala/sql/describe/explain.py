"""Executes EXPLAIN [ANALYZE].

For a SELECT, the answer is DuckDB's plan with the predicates that Nyala's scans apply. EXPLAIN
ANALYZE also runs the SELECT, discards its rows, and adds times and row counts to the plan. For any
other statement, the answer says what it would write. Nothing is written.

Source: docs/how-to/sql.md.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from nyala.errors import InvalidArgumentError
from nyala.sql.change.explain import explain_change
from nyala.sql.context import Context, Source
from nyala.sql.tokens import READS, WRITES, TokenReader, main_keyword, tokens

_DEFINES: Final = {
    "CREATE": "would create the table in one commit, with the rows of its SELECT if there is one",
    "ALTER": "would change the table's catalogue entry in one commit, and rewrite no rows",
    "DROP": "would drop the table; without PURGE, UNDROP TABLE brings it back as long as its history lasts",
    "UNDROP": "would bring back the dropped table",
    "COMMENT": "would change a comment in the catalogue",
}


def explain(context: Context, reader: TokenReader) -> tuple[Source, pa.Table]:
    """Execute EXPLAIN. reader: the statement after the word EXPLAIN. Raises: errors of the explained statement."""
    analyze = reader.take("ANALYZE")
    if reader.at("(", "ANALYZE", ")"):
        analyze = reader.take("(", "ANALYZE", ")")
    source = context.readable()
    first = reader.peek()
    if first is None:
        raise reader.error("EXPLAIN takes a statement")
    text = reader.rest()
    word = main_keyword(tokens(text))
    if word in READS:
        return source, _of_select(context, source, text, analyze)
    if word in _DEFINES:
        return source, _made(
            [("statement", _of_definition(text, word)), *_source_plan(context, source, text)]
        )
    if word in WRITES:
        return source, _made(explain_change(context, source, text))
    raise InvalidArgumentError(f"EXPLAIN takes a statement that reads or writes tables, not {first.text}")


def _of_select(context: Context, source: Source, text: str, analyze: bool) -> pa.Table:
    result = context.select(source, text)
    if not analyze:
        return _made([("physical_plan", result.plan())])
    found = result.analyze()
    return _made([("analyzed_plan", found.plan), *(("scan", str(scan)) for scan in found.scans)])


def _of_definition(text: str, word: str) -> str:
    shown = text if len(text) <= 60 else f"{' '.join(text.split())[:60]} … "
    return f"{shown}: {_DEFINES[word]}"


def _source_plan(context: Context, source: Source, text: str) -> list[tuple[str, str]]:
    """Return the plan of the SELECT in CREATE TABLE … AS SELECT; [] for any other statement."""
    reader = TokenReader(text)
    if not reader.at("CREATE"):
        return []
    reader.until(*(("AS", word) for word in READS))
    if not reader.take("AS"):
        return []
    return [("physical_plan", context.select(source, reader.rest()).plan())]


def _made(rows: list[tuple[str, str]]) -> pa.Table:
    keys, values = zip(*rows, strict=True)
    return pa.table(
        {"explain_key": pa.array(keys, pa.string()), "explain_value": pa.array(values, pa.string())}
    )
