"""The settings of a shell, and how it prints rows and messages.

Source: docs/how-to/shell.md.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nyala.presentation.previews import ROWS_COUNTED
from nyala.presentation.text_table import width_of
from nyala.shell.formats import FORMATS, STREAMED
from nyala.shell.runner import Cancelled, Runner
from nyala.sql.result import FixedResult, Result

if TYPE_CHECKING:
    import pyarrow as pa

    from nyala.api.database import Database

__all__ = ["ROWS_SHOWN", "Console", "Settings"]

ROWS_SHOWN: Final = 40
"""The number of rows of a result that a terminal shows, until `.rows` changes it."""


@dataclass
class Settings:
    """The settings that dot commands change.

    rows: how many rows of a result a terminal shows; None: all.
    at: the moment that SELECT reads; None: now.
    """

    mode: str = "table"
    timing: bool = False
    rows: int | None = ROWS_SHOWN
    at: int | None = None


class Console:
    """A store with a session on it, and the settings for printing."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self.database = database
        self.settings = settings
        self.runner = Runner(database)

    def print_result(self, result: Result, with_rows: bool) -> None:
        """Print the rows of a statement, or the number of rows that it changed.

        with_rows: whether a statement that changes rows has RETURNING. Raises Cancelled if Ctrl-C
        ended the printing of a query. After a statement that changed rows, Ctrl-C ends the printing
        too, but the number is printed.
        """
        if result.rowcount < 0 and (not isinstance(result, FixedResult) or result.columns):
            self.print_rows(self.runner.call(result.to_reader))
            return
        unprinted = False
        if with_rows:
            try:
                self.print_rows(result.to_reader())
            except Cancelled:
                unprinted = True
        count = f": {_counted(result.rowcount)}" if result.rowcount >= 0 else ""
        self.note(f"{result.statement}{count}{'; the rows are not all shown' if unprinted else ''}")

    def print_rows(self, reader: pa.RecordBatchReader) -> None:
        """Print rows in the mode of the settings, as they arrive."""
        mode = self.settings.mode
        on_terminal = sys.stdout.isatty()
        shown = _ShownRows(self.settings.rows if on_terminal and mode not in STREAMED else None)
        is_wide = False
        for text in FORMATS[mode](reader.schema, shown.first(self.runner.batches(reader))):
            is_wide = is_wide or (on_terminal and mode == "table" and _is_wide(text))
            sys.stdout.write(text)
            self.runner.check()
        sys.stdout.flush()
        if on_terminal and mode not in STREAMED:
            self.note(shown.summary() + ("; .mode line shows a column per line" if is_wide else ""))

    def print_text(self, text: str) -> None:
        """Print a text on stdout."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def flush(self) -> None:
        sys.stdout.flush()

    def note(self, line: str) -> None:
        """Print a message on stderr."""
        sys.stdout.flush()
        print(line, file=sys.stderr, flush=True)


class _ShownRows:
    """Yields the first rows of a result, and counts all its rows.

    Counting stops after more than `ROWS_COUNTED` rows. `summary` then says "more than 100,000 rows".

    limit: the number of rows to yield. With None, all rows are yielded.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._passed = self._count = 0

    def first(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self._count += batch.num_rows
            if self._limit is not None:
                batch = batch.slice(0, self._limit - self._passed)
            if batch.num_rows:
                self._passed += batch.num_rows
                yield batch
            if self._passed < self._count and self._count > ROWS_COUNTED:
                return

    def summary(self) -> str:
        if self._passed == self._count:
            return _counted(self._count)
        more = "more than " if self._count > ROWS_COUNTED else ""
        count = ROWS_COUNTED if more else self._count
        return f"{more}{count:,} rows; the first {self._passed:,} are shown (.rows all shows all)"


def _is_wide(text: str) -> bool:
    """Whether any line of the text is wider than the terminal."""
    columns = shutil.get_terminal_size().columns
    return any(width_of(line) > columns for line in text.splitlines())


def _counted(rows: int) -> str:
    return f"{rows:,} row{'' if rows == 1 else 's'}"
