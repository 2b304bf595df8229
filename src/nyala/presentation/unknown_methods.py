"""What to write for a method that other libraries have.

    table.columns       'Table' object has no attribute 'columns': the names are table.schema.names
    scan.rows()         'Scan' object has no attribute 'rows': scan.to_arrow().to_pylist() is a list of …

A type checker is not told of any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from nyala.errors import bounded

__all__ = ["no_attribute", "not_pickled"]

_ROWS: Final = "{x}.to_arrow().to_pylist() is a list of the rows as dicts"
_FRAME: Final = "{x}.to_pandas() and {x}.to_polars() are data frames, {x}.to_arrow() is an Arrow table"
_OF_SCANS: Final = {
    **dict.fromkeys(("rows", "to_list", "to_pylist", "to_dicts", "fetchall"), _ROWS),
    **dict.fromkeys(("collect", "to_df", "df", "to_table", "read_all", "compute", "load"), _FRAME),
}
_CHOOSE: Final = "table.scan(columns=[…], where=\"host = 'a'\", limit=…) says which columns and rows"
_ALTER: Final = (
    "`with table.alter() as a:` changes a table: a.add_column(…), a.alter_column(…), a.drop_column(…), "
    "a.rename_column(…)"
)
_HINTS: Final[Mapping[str, Mapping[str, str]]] = {
    "Scan": {
        **_OF_SCANS,
        **dict.fromkeys(("filter", "where", "select", "query", "sort", "order_by", "limit"), _CHOOSE),
        **dict.fromkeys(("columns", "column_names"), "the names are scan.schema.names"),
    },
    "ChangeFeed": _OF_SCANS,
    "Table": {
        **{name: hint.replace("{x}", "table.scan()") for name, hint in _OF_SCANS.items()},
        **dict.fromkeys(("filter", "where", "select", "query", "find"), _CHOOSE),
        **dict.fromkeys(("columns", "column_names"), "the names are table.schema.names"),
        "sql": "db.sql('SELECT …') asks in SQL",
        **dict.fromkeys(
            ("to_polars_lazy", "to_duckdb", "to_reader", "batches", "to_spark"), "table.scan().{name}()"
        ),
        **dict.fromkeys(
            ("describe", "info", "dtypes"), "table.schema has columns and types, table.stats() figures"
        ),
        **dict.fromkeys(("value", "lookup", "row"), "table.get(key) is a row by its key"),
        **dict.fromkeys(("drop", "remove"), "db.drop_table(name)"),
        **dict.fromkeys(("truncate", "clear"), 'table.delete(where="TRUE") deletes all rows'),
        **dict.fromkeys(("write", "save", "put", "add"), "table.upsert(data) or table.insert(data)"),
        "rename": "db.rename_table(old, new)",
        **dict.fromkeys(
            ("add_column", "drop_column", "rename_column", "alter_column", "add_columns"), _ALTER
        ),
        "close": "the database is closed: db.close()",
        **dict.fromkeys(
            ("merge", "merge_insert"), "upsert(), which inserts what is new and updates what is there"
        ),
        "versions": "table.history(key), or table.changes(since, versions='all')",
    },
    "Database": {
        "tables": "db.list_tables()",
        **dict.fromkeys(("table_names", "show_tables"), "db.list_tables()"),
        **dict.fromkeys(("execute", "query", "cursor"), "db.sql('SELECT …'), or db['table'].scan(where=…)"),
        "drop": "db.drop_table(name)",
        "create": "db.create_table(name, schema, primary_key)",
        **dict.fromkeys(("open_table", "get_table"), "db['name'], or db.table('name')"),
        **dict.fromkeys(
            ("read_table", "read", "load_table"), "db['name'].scan() has its rows, db['name'] is the table"
        ),
        **dict.fromkeys(("insert", "upsert", "update", "delete", "scan", "get"), "db['table'].{name}(…)"),
        **dict.fromkeys(
            ("begin", "transaction", "commit"), "`with db.batch() as b:` is one commit of several writes"
        ),
        "compact": "db['table'].compact()",
        **dict.fromkeys(("metrics", "info", "status"), "db.stats() has figures, db.check() looks for damage"),
    },
    "Result": {
        **dict.fromkeys(("pl", "polars"), "result.to_polars()"),
        **dict.fromkeys(("fetchdf", "fetch_df", "pandas"), "result.to_pandas()"),
        **dict.fromkeys(("fetch_arrow_table", "to_table", "read_all"), "result.to_arrow()"),
        **dict.fromkeys(
            ("show", "head"), "print(result) shows the first rows, result.fetchmany(n) gives some"
        ),
        **dict.fromkeys(("rows", "to_list", "to_pylist", "to_dicts"), "result.to_arrow().to_pylist()"),
    },
}


def no_attribute(owner: object, name: str) -> AttributeError:
    """The error for a name that an object of ours does not have."""
    kind = type(owner).__name__
    hint = _HINTS.get(kind, {}).get(name)
    text = bounded(f"{kind!r} object has no attribute {name!r}")
    if hint is not None:
        text += ": " + hint.replace("{x}", "feed" if kind == "ChangeFeed" else "scan").replace("{name}", name)
    # With these Python looks for a name that is nearly the same.
    return AttributeError(text, name=name, obj=owner)


def not_pickled(given: object) -> TypeError:
    """For `__reduce__` of what belongs to an open store: pickle's own words would name something inside of it."""
    return TypeError(
        f"a {type(given).__name__} is of the store that this process has open, and is not pickled: open the "
        "store where it is needed, nyala.connect(path, read_only=True), or hand over scan.tokens()"
    )
