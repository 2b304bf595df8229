"""COPY … TO: DuckDB writes the rows of a SELECT to a file.

DuckDB writes the file under a temporary name in the same folder. Then the file is synced and
renamed. So the file is complete, and a file that had this name stays as it was if the statement
fails. With PARTITION_BY, PER_THREAD_OUTPUT or FILE_SIZE_BYTES, DuckDB writes a folder of files in
place, without a temporary name.

Source: DuckDB, "COPY Statement", "COPY … TO".
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Sequence

import pyarrow as pa

from nyala.errors import InvalidArgumentError, StorageError
from nyala.sql.context import Context
from nyala.sql.result import FixedResult
from nyala.sql.tokens import quoted, quoted_text, tokens

_FOLDERS = frozenset(("PARTITION_BY", "PER_THREAD_OUTPUT", "FILE_SIZE_BYTES"))
_REFUSED = frozenset(("RETURN_FILES", "RETURN_STATS", "USE_TMP_FILE"))


def copy_to(
    context: Context, query: str | None, table: str, columns: Sequence[str] | None, path: str, options: str
) -> FixedResult:
    """Write the rows of the query, or columns of the table, to a file. Raises: as `Database.sql`; StorageError.

    columns: None for all. options: the text after the file's name.
    """
    if query is None:
        listed = ", ".join(f"nyala_copied.{quoted(name)}" for name in columns) if columns else "*"
        query = f"SELECT {listed} FROM {table} AS nyala_copied"
    words = {token.text.upper() for token in tokens(options) if token.is_identifier}
    if refused := sorted(words & _REFUSED):
        raise InvalidArgumentError(f"COPY … TO has no option {refused[0]}: leave it out")
    if "://" in path:
        raise InvalidArgumentError(
            f"COPY writes local files only, not {path!r}: write a local file, or use db.sql(…).to_reader()"
        )
    selected = context.select(context.readable(), query)
    path = os.path.realpath(os.path.expanduser(path))
    in_place = bool(words & _FOLDERS) or (os.path.exists(path) and not os.path.isfile(path))
    folder, base = os.path.split(path)
    if not os.path.isdir(folder):
        raise InvalidArgumentError(f"there is no folder {folder!r} to write {base!r} in")
    if os.path.isdir(path) and not words & _FOLDERS:
        raise InvalidArgumentError(
            f"{path!r} is a folder: name a file, or add PARTITION_BY or PER_THREAD_OUTPUT"
        )
    # DuckDB takes the format and the compression from the suffix, so the temporary name has the same suffix.
    target = path if in_place else os.path.join(folder, f".nyala-{secrets.token_hex(4)}-{base}")
    try:
        rows = selected.run_within("COPY (", f") TO {quoted_text(target)} {options}")
        if not in_place:
            _install(target, path)
    except OSError as error:
        raise StorageError(f"COPY could not write {path!r}: {error}", path=path) from error
    finally:
        if not in_place:
            with contextlib.suppress(OSError):
                os.unlink(target)
    return FixedResult(
        "COPY",
        pa.table({"Count": pa.array([rows], pa.int64())}),
        selected.timestamp,
        rowcount=rows,
        is_count=True,
    )


def _install(written: str, path: str) -> None:
    """Sync the file and rename it to `path`."""
    file = os.open(written, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
    os.replace(written, path)
