"""Operations of Alembic for tables of a store. The dialect imports this module if Alembic is installed.

A store changes its tables at once, and not in a transaction. So an operation that changes a table
first commits the rows that the migration has written, as Alembic does with MySQL and Oracle.

Source: docs/reference/sqlalchemy.md, "Alembic"; Alembic, `alembic.ddl.impl.DefaultImpl`.
"""

from __future__ import annotations

from typing import Any

from alembic.ddl.base import ColumnComment, alter_column, alter_table
from alembic.ddl.impl import DefaultImpl
from sqlalchemy import BigInteger, Column, MetaData, literal_column, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.ddl import DDLElement
from sqlalchemy.sql.elements import TextClause

from nyala.dbapi import CHANGES_OF_TABLES
from nyala.schema.schema import AUTO_INCREMENT
from nyala.sql.tokens import main_keyword, quoted_text, tokens


class NyalaImpl(DefaultImpl):
    """Executes Alembic's operations on tables of a store.

    It also compares tables for `alembic revision --autogenerate`.
    """

    __dialect__ = "nyala"
    transactional_ddl = False

    def _exec(self, construct: Any, *args: Any, **kw: Any) -> Any:
        if self.connection is not None and not self.as_sql and _changes_tables(construct):
            self.connection.connection.commit()
        return super()._exec(construct, *args, **kw)

    def create_index(self, index: Any, **kw: Any) -> None:
        if index.unique:
            super().create_index(index, **kw)  # raises CompileError

    def drop_index(self, index: Any, **kw: Any) -> None:
        """Do nothing: a table has no indexes besides its key."""

    def compare_server_default(
        self,
        inspector_column: Any,
        metadata_column: Any,
        rendered_metadata_default: Any,
        rendered_inspector_default: Any,
    ) -> bool:
        """Whether the defaults have different values."""
        if rendered_metadata_default is None or rendered_inspector_default is None or self.connection is None:
            return bool(rendered_metadata_default != rendered_inspector_default)
        compiler = self.dialect.ddl_compiler(self.dialect, None)  # type: ignore[arg-type]
        ours = compiler.get_column_default_string(metadata_column)
        kind = self.dialect.type_compiler_instance.process(inspector_column.type)
        differ = f"CAST({ours} AS {kind}) IS DISTINCT FROM CAST({rendered_inspector_default} AS {kind})"
        return bool(self.connection.scalar(select(literal_column(differ))))

    def correct_for_autogen_constraints(
        self,
        conn_uniques: set[Any],
        conn_indexes: set[Any],
        metadata_unique_constraints: set[Any],
        metadata_indexes: set[Any],
    ) -> None:
        """Remove all indexes that are not unique from the comparison, because a store ignores them."""
        metadata_indexes.difference_update([each for each in metadata_indexes if not each.unique])

    def correct_for_autogen_foreignkeys(self, conn_fks: set[Any], metadata_fks: set[Any]) -> None:
        """Remove all foreign keys from the comparison, because a store ignores them."""
        metadata_fks.clear()

    def autogen_column_reflect(self, inspector: Any, table: Any, column_info: Any) -> None:
        """Add the column `auto_incrementing_id` to a reflected table, because reflection hides it.

        Alembic calls this method while it compares the store with the program's metadata. The column
        is added only if it is the table's primary key in the metadata.
        table: the reflected table, which is changed.
        inspector, column_info: not used.
        """
        given = self.context_opts.get("target_metadata")
        for metadata in [given] if isinstance(given, MetaData) else given or ():
            ours = metadata.tables.get(table.name)
            if ours is not None and [each.name for each in ours.primary_key] == [AUTO_INCREMENT]:
                if AUTO_INCREMENT not in table.c:
                    table.append_column(Column(AUTO_INCREMENT, BigInteger, nullable=False))


def _changes_tables(construct: Any) -> bool:
    if isinstance(construct, str | TextClause):
        return main_keyword(tokens(str(construct))) in CHANGES_OF_TABLES
    return isinstance(construct, DDLElement)


@compiles(ColumnComment, "nyala")
def _column_comment(element: Any, compiler: Any, **kw: Any) -> str:
    table = alter_table(compiler, element.table_name, element.schema)
    column = alter_column(compiler, element.column_name)
    return f"{table} {column} SET COMMENT {quoted_text(element.comment or '')}"
