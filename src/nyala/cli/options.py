"""Arguments and options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from nyala.cli.stores import check_store_path

if TYPE_CHECKING:
    from nyala.schema.types import ColumnType

__all__ = [
    "TRUTH",
    "delimiter_option",
    "folder_argument",
    "format_option",
    "moment_option",
    "names",
    "parse_value",
    "scan_options",
    "table_argument",
]

F = TypeVar("F", bound=Callable[..., Any])

folder_argument = click.argument("folder", type=click.Path(), callback=check_store_path)
table_argument = click.argument("table", metavar="[TABLE]", required=False)


def names(context: click.Context, parameter: click.Parameter, value: str | None) -> list[str] | None:
    """Parse column names: `a,b`, or a JSON list if a name contains a comma."""
    if value is None:
        return None
    if value.lstrip().startswith("["):
        import json

        try:
            found = json.loads(value)
        except json.JSONDecodeError as error:
            raise click.BadParameter(
                f"{value!r} is not a valid JSON list: {error}", context, parameter
            ) from None
        if not all(isinstance(name, str) for name in found):
            raise click.BadParameter(f"{value!r} is not a list of names", context, parameter)
    else:
        found = [name.strip() for name in value.split(",")]
    if not found or not all(found):
        raise click.BadParameter(f"{value!r} contains an empty name", context, parameter)
    return [str(name) for name in found]


def moment_option(name: str, help: str, required: bool = False) -> Callable[[F], F]:
    """Return an option whose value is a moment: an ISO time, a timestamp, a tag, or an age such as 2h."""

    def parse(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
        from nyala.shell.moments import parse_moment

        return None if value is None else parse_moment(value)

    return click.option(name, metavar="TIME", required=required, callback=parse, help=help)


def scan_options(function: F) -> F:
    """Add --columns, --where, --at, --limit and --order to the click command `function`; return it.

    The commands `scan` and `export` have these options.
    """
    for option in (
        click.option("--order", is_flag=True, help="Return rows in key order."),
        click.option("--limit", type=click.IntRange(min=0), metavar="N", help="At most N rows."),
        moment_option(
            "--at",
            "Read as of this time: ISO time (default UTC), an age (2h, 1d), a tag, or a Nyala timestamp.",
        ),
        click.option(
            "--where",
            metavar="TEXT",
            help="Only rows that match this condition, e.g. \"host = 'a' AND time >= 5\".",
        ),
        click.option("--columns", metavar="A,B", callback=names, help="Only these columns, in this order."),
    ):
        function = option(function)
    return function


def _delimiter(context: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    if text in ("\\t", "tab"):
        return "\t"
    if text is not None and len(text.encode()) != 1:
        raise click.UsageError(f"--delimiter must be one character, got {text!r}")
    return text


format_option = click.option(
    "--format",
    "format_",
    type=click.Choice(["parquet", "csv", "json"]),
    help="The format of FILE. Default: from its name.",
)
delimiter_option = click.option(
    "--delimiter",
    metavar="SIGN",
    callback=_delimiter,
    help="The character between the fields of a CSV. Default: load detects it in the header; export writes a comma, "
    "or a tab for .tsv.",
)


TRUTH: Final = {"true": True, "yes": True, "false": False, "no": False}


def parse_value(type: ColumnType, text: str) -> Any:
    """Convert text of the command line to a value of the type. Times are in ISO form; binary is
    UTF-8 text.

    Raises click.UsageError.
    """
    import decimal

    kinds: dict[str, Callable[[str], Any]] = {
        "bool": lambda text: TRUTH[text.lower()],
        "decimal": decimal.Decimal,
        "float": float,
        "double": float,
        "binary": str.encode,
    }
    try:
        return (int if type.is_integer else kinds.get(type.name, str))(text)
    except (KeyError, ValueError, ArithmeticError) as error:
        raise click.UsageError(f"{text!r} is not {type}") from error
