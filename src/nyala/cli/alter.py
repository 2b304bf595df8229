"""`nyala table alter`: applies all steps to a table at one moment, or none of them.

    nyala table alter STORE metrics "add unit string default=ms" "rename val value" "change value type=int64" \\
        "add-range 2027-01-01 2028-01-01" "drop-range 2020-01-01 2021-01-01"

A step is one argument: a verb, names, and `property=value` pairs. A value with spaces is quoted as
in a shell.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from nyala.cli.base import Command, settings
from nyala.cli.options import TRUTH, folder_argument, parse_value
from nyala.cli.output import counted, echo_json
from nyala.cli.stores import describe_columns, find_table, partition_text, state_of, writer

if TYPE_CHECKING:
    from nyala.api.alter import Alteration
    from nyala.schema.types import ColumnType
    from nyala.tablet.state.root import TableState

__all__ = ["alter"]

_EXAMPLES: Final = {
    "add": "add NAME TYPE property=value",
    "drop": "drop NAME",
    "rename": "rename OLD NEW",
    "change": "change NAME property=value",
    "add-range": "add-range LOWER UPPER",
    "drop-range": "drop-range LOWER UPPER purge=true",
    "undrop-range": "undrop-range LOWER UPPER",
    "rename-table": "rename-table NAME",
    "comment": "comment 'SOME TEXT'",
    "history": "history 30d",
}
# An empty value, as in `encoding=`, sets these.
_DEFAULTS: Final = {"encoding": "auto", "compression": "default"}


@click.command(cls=Command)
@folder_argument
@click.argument("table")
@click.argument("steps", nargs=-1, required=True, metavar="STEP...")
def alter(folder: str, table: str, steps: tuple[str, ...]) -> None:
    """Change a table's columns, ranges, history, name or comment, all or nothing.

    STEP is one of: "add NAME TYPE [property=value…]", "drop NAME", "rename OLD NEW", "change NAME
    property=value…", "add-range LOWER UPPER", "drop-range LOWER UPPER [purge=true]", "undrop-range
    LOWER UPPER", "rename-table NAME", "comment TEXT", "history HOW-LONG" (30d, 12h, 90s, forever).
    """
    with writer(folder, maintenance=False) as database:
        found = find_table(database, table)
        before = state_of(database, found.name)
        with found.alter() as alteration:
            for step in steps:
                _apply_step(alteration, before, step)
        state = state_of(database, found.name)
        if settings().json:
            echo_json(
                {
                    "store": database.path,
                    "table": found.name,
                    "comment": state.entry.comment,
                    "history_seconds": None
                    if state.entry.history_us is None
                    else state.entry.history_us / 1e6,
                    "columns": describe_columns(state),
                    "partitioning": partition_text(state),
                    "tablets": len(state.tablets),
                }
            )
            return
        columns = ", ".join(map(str, state.schema.columns))
        tablets = counted(len(state.tablets), "tablet")
        click.echo(f"{found.name}: {columns}; {partition_text(state)}, {tablets}")


def _apply_step(alteration: Alteration, state: TableState, step: str) -> None:
    try:
        verb, *words = shlex.split(step)
    except ValueError as error:
        raise click.UsageError(f"step {step!r}: {error}") from error
    verbs: Mapping[str, tuple[int, Callable[..., None]]] = {
        "add": (
            2,
            lambda name, type, **pairs: alteration.add_column(name, type, **_column_options(type, pairs)),
        ),
        "drop": (1, alteration.drop_column),
        "rename": (2, alteration.rename_column),
        "change": (1, lambda name, **pairs: _change(alteration, name, pairs)),
        "add-range": (2, lambda *bounds: alteration.add_range(*_bounds(state, bounds))),
        "drop-range": (2, lambda *bounds, **pairs: _drop_range(alteration, _bounds(state, bounds), pairs)),
        "undrop-range": (2, lambda *bounds: alteration.undrop_range(*_bounds(state, bounds))),
        "rename-table": (1, alteration.rename),
        "comment": (1, alteration.set_comment),
        "history": (1, lambda text: _set_history(alteration, text)),
    }
    if verb not in verbs:
        raise click.UsageError(f"step {step!r}: unknown step {verb!r}; a step begins with {', '.join(verbs)}")
    count, call = verbs[verb]
    names, pairs = words[:count], words[count:]
    takes_pairs = verb in ("add", "change", "drop-range")
    unexpected = next((word for word in pairs if not takes_pairs or "=" not in word), None)
    if len(names) < count or unexpected is not None:
        what = (
            f"unexpected {unexpected!r}" if unexpected is not None else f"expected {counted(count, 'word')}"
        )
        raise click.UsageError(
            f"step {step!r}: {what} after {verb!r}; quote the whole step, as in {_EXAMPLES[verb]!r}, and write "
            "property=value"
        )
    call(*names, **dict(word.split("=", 1) for word in pairs))


def _drop_range(alteration: Alteration, bounds: Sequence[Any], pairs: Mapping[str, str]) -> None:
    """Drop a range. Raises click.UsageError for other pairs than purge=true and purge=false."""
    unexpected = next((f"{what}={text}" for what, text in pairs.items() if what != "purge"), None)
    purge = pairs.get("purge", "false").lower()
    if unexpected is not None or purge not in TRUTH:
        raise click.UsageError(
            f"{unexpected or f'purge={purge}'}: drop-range takes purge=true or purge=false"
        )
    alteration.drop_range(*bounds, purge=TRUTH[purge])


def _set_history(alteration: Alteration, text: str) -> None:
    """Set the table's history from a text such as "30d".

    Raises click.UsageError for a number without a unit, because 30 could mean days or seconds, and
    a history that is too short loses old rows.
    """
    if text.isdigit() and int(text):
        raise click.UsageError(
            f"step 'history {text}': {text} has no unit; write {text}d for days, or {text}h, {text}m or {text}s"
        )
    alteration.set_history(0 if text.isdigit() else text)


def _change(alteration: Alteration, name: str, pairs: dict[str, str]) -> None:
    type = pairs.get("type", alteration.schema.by_name(name).type)
    alteration.alter_column(name, **_column_options(type, pairs))


def _column_options(type: str | ColumnType, pairs: Mapping[str, str]) -> dict[str, Any]:
    """Convert `property=value` pairs to arguments of `add_column` and `alter_column`."""
    from nyala.schema.types import parse_type

    out: dict[str, Any] = {}
    for what, text in pairs.items():
        if what in ("nullable", "immutable"):
            if text.lower() not in TRUTH:
                raise click.UsageError(f"{what}={text}: expected true or false")
            out[what] = TRUTH[text.lower()]
        elif what == "default":
            out[what] = None if text == "" else parse_value(parse_type(type), text)
        elif what == "block_size":
            out[what] = int(text) if text.isdigit() else text or None
        elif what in _DEFAULTS:
            out[what] = text or _DEFAULTS[what]
        elif what in ("type", "comment"):
            out[what] = text
        else:
            raise click.UsageError(
                f"{what}={text}: unknown property {what!r}; use type, nullable, default, encoding, compression, "
                "block_size, comment or immutable"
            )
    return out


def _bounds(state: TableState, words: Sequence[str]) -> list[Any]:
    """Parse the bounds of a range. "-" means unbounded; commas separate the values of several columns."""
    types = [column.type for column in state.entry.partition_schema.range_columns(state.schema)]
    bounds: list[Any] = []
    for word in words:
        if word == "-":
            bounds.append(None)
            continue
        parts = [word] if len(types) < 2 else word.split(",")
        values = [parse_value(type, part) for type, part in zip(types, parts, strict=False)]
        bounds.append(values[0] if len(types) == 1 else tuple(values))
    return bounds
