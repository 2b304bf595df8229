"""Rewords error messages of the library for users of `.option(...)`.

A message of the library names Python arguments, such as `at=`. Each rule below replaces a phrase
with the options of Spark's data source. `nyala.cli.base` does the same for the command line.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from nyala import compute as pc
from nyala.errors import Error

__all__ = ["errors_in_options", "in_options", "rows_in_options", "without_row_positions"]

# Rules for the messages of failing rows. They are plain text, which is faster for thousands of rows.
_ROW_RULES: Final = (
    ('use upsert(), or pass on_conflict="ignore"', "use operation upsert or insert-ignore"),
    ('use upsert(), or pass on_missing="ignore"', "use operation upsert or update-ignore"),
    ('pass on_missing="ignore"', "use operation delete-ignore"),
    ("or use upsert(), where the later row wins", "or use operation upsert, where the later row wins"),
)
# Row positions count the rows of a task or a commit, not of the DataFrame.
_ROW_POSITIONS: Final = r"(duplicate key in this batch): rows [0-9]+ and [0-9]+ have the same key"
_RULES: Final = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"^at=", "option at="),
        (r"upsert takes either when= or newest_by=, not both", "options when and newest_by exclude each other"),
        (r"\b(when|newest_by)=('[^']*'| names)", r"option \1=\2"),
        (r"\boption when= names", "option when names"),
        (r"^(when|newest_by) goes with operation", r"option \1 goes with operation"),
        (_ROW_POSITIONS, r"\1"),
        (r"write at=('[^']*'), or pass a datetime", r"write .option('at', \1)"),
        (r"exclude the range with where=", "exclude the range with .option('where', …)"),
        (r"pass columns=\[…\] without", "pass .option('columns', …) without"),
        (r"TRUE selects every row", "leave the option out to read every row"),
        (r"; pass a long list as a parameter \(k IN \?\) or with nyala\.col\('k'\)\.isin\(values\)",
         "; join with a DataFrame of the values instead"),
        (r"or connect without read_only to create one", "or create one with nyala.connect(path)"),
        (r"create one with create_table\(\)", "create one with nyala.connect(path).create_table(…)"),
        (r"open it with read_only=True, wait for the writer to close it with lock_timeout=seconds, or end (.*)",
         r"it neither answered nor ended within a minute: wait until it is closed, or end \1"),
        *((re.escape(python), words) for python, words in _ROW_RULES),
    )
)  # fmt: skip


def in_options(message: str) -> str:
    """Return a message of the library with Spark's options in place of Python arguments.

    For example, `at=` becomes "option at=".
    """
    for pattern, words in _RULES:
        message = pattern.sub(words, message)
    return message


def rows_in_options(errors: pa.Table) -> pa.Table:
    """Return failing rows with messages that name Spark's options in place of Python arguments.

    Also removes row positions from the messages (`without_row_positions`).

    errors: a table of failing rows.
    """
    messages = errors.column("message")
    for python, words in _ROW_RULES:
        messages = pc.replace_substring(messages, python, words)
    return without_row_positions(
        errors.set_column(errors.schema.get_field_index("message"), "message", messages)
    )


def without_row_positions(errors: pa.Table) -> pa.Table:
    """Return a table of failing rows without row positions in its messages.

    The positions count the rows of one task, so they mean nothing to the user.
    """
    messages = pc.replace_substring_regex(errors.column("message"), _ROW_POSITIONS, r"\1")
    return errors.set_column(errors.schema.get_field_index("message"), "message", messages)


@contextlib.contextmanager
def errors_in_options(moment: str = "at") -> Iterator[None]:
    """Change the messages of errors that the block or decorated method raises.

    The messages then name Spark's options instead of Python arguments: "option at=", not `at=`.

    moment: the Spark option that messages name instead of "at", such as "endingTimestamp".
    """
    try:
        yield
    except Error as error:
        text = in_options(str(error))
        if moment != "at":
            text = re.sub(r"\boption at=", f"option {moment}=", text).replace(
                "option('at'", f"option('{moment}'"
            )
        error.args = (text, *error.args[1:])
        raise
