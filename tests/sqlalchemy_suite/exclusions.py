"""The parts of SQLAlchemy's test suite that do not run. A test compares docs/reference/sqlalchemy.md with them."""

from __future__ import annotations

from typing import Final

# Features that are off, for each reason. The names are those of
# `sqlalchemy.testing.requirements.SuiteRequirements`. All other features are on.
FEATURES: Final[dict[str, str]] = {
    "Foreign keys are left out of CREATE TABLE": """
        foreign_keys self_referential_foreign_keys on_update_cascade non_updating_cascade deferrable_fks
        on_update_or_deferrable_fks recursive_fk_cascade repeated_column_foreign_keys
        repeated_remote_col_foreign_keys foreign_keys_reflect_as_index foreign_key_constraint_reflection
        foreign_key_constraint_name_reflection foreign_key_constraint_option_reflection_ondelete
        fk_constraint_option_reflection_ondelete_restrict fk_constraint_option_reflection_ondelete_noaction
        foreign_key_constraint_option_reflection_onupdate fk_constraint_option_reflection_onupdate_restrict
        cross_schema_fk_reflection""",
    "There are no indexes but the primary key": """
        index_reflection index_ddl_if_exists index_reflects_included_columns indexes_with_ascdesc
        indexes_check_column_order indexes_with_expressions reflect_indexes_with_ascdesc
        reflect_indexes_with_ascdesc_as_expression reflect_indexes_with_expressions""",
    "UNIQUE and CHECK are refused, because a store would not check them": """
        unique_constraint_reflection unique_index_reflect_as_unique_constraints
        unique_constraints_reflect_as_index check_constraint_reflection inline_check_constraint_reflection""",
    "Columns have no collation; an expression may have one": "column_collation_reflection",
    "Constraints have no names and comments": "reflects_pk_names constraint_comment_reflection",
    "There are no views": """
        views create_or_replace_view view_reflection view_column_reflection temporary_views materialized_views
        materialized_views_reflect_pk""",
    "The only schema is main": """
        schemas schema_reflection schema_create_delete implicit_default_schema default_schema_name_switch""",
    "There are no sequences and identity columns": """
        sequences sequences_optional identity_columns identity_columns_standard""",
    "There are no computed columns": """
        computed_columns computed_columns_stored computed_columns_virtual computed_columns_default_persisted
        computed_columns_reflect_persisted""",
    "There are no temporary tables": """
        temporary_tables create_temp_table_as has_temp_table temp_table_names temp_table_reflection
        temp_table_reflect_indexes temp_table_comment_reflection""",
    "A table has at least one column": "reflect_tables_no_columns",
    "Transactions have no savepoints and no two-phase commit": "savepoints two_phase_transactions",
    "Defaults of columns are constants, and are reflected as such": "expression_server_defaults",
    "There are no column types for lists, intervals and UUIDs": "array_type datetime_interval uuid_data_type",
    "DuckDB cannot add an interval to a DATE in the RANGE of a window": "window_range_non_numeric",
    "DuckDB has no FETCH with PERCENT and WITH TIES": "fetch_percent fetch_ties",
    "lastrowid is None: the dialect gets new keys before the INSERT, or by RETURNING": """
        supports_lastrowid dbapi_lastrowid implements_get_lastrowid emulated_lastrowid
        emulated_lastrowid_even_with_sequences""",
    "The tests compare two kinds of cursors, and this dialect has one": "server_side_cursors",
    "Names keep their case": "denormalized_names",
    "JSON is text, not bytes": "json_deserializer_binary",
}

# Single tests by class and name, with the ids of parameters if only these do not run.
TESTS: Final[dict[str, str]] = {
    "ComponentReflectionTest.test_get_view_names": "There are no views",
    "ComponentReflectionTestExtra.test_string_length_reflection[CHAR": "CHAR(n) is reflected as VARCHAR(n)",
    "ComponentReflectionTestExtra.test_server_defaults[DateTime": (
        "Defaults of columns are constants, and are reflected as such"
    ),
    "InsertBehaviorTest.test_autoclose_on_insert_implicit_returning": (
        "The test expects that an INSERT returns its integer key. The dialect chooses the key before the INSERT"
    ),
    "InsertBehaviorTest.test_insert_from_select_autoinc": "INSERT … SELECT must give the key",
    "IsolationLevelTest.test_dialect_user_setting_is_restored": (
        "SNAPSHOT and AUTOCOMMIT are the only isolation levels, and the test needs three"
    ),
    "JSONTest.test_index_typed_access[_decimal": "DuckDB reads numbers in JSON as floating-point numbers",
    "JSONTest.test_index_typed_comparison[_decimal": "DuckDB reads numbers in JSON as floating-point numbers",
    "JSONTest.test_path_typed_comparison[_decimal": "DuckDB reads numbers in JSON as floating-point numbers",
    "LongNameBlowoutTest.test_long_convention_name[ix": "There are no indexes but the primary key",
    "TrueDivTest.test_truediv_divisor[numeric_38_digit_divisor": (
        "DuckDB divides decimals as floating-point numbers"
    ),
    "TrueDivTest.test_truediv_divisor[numeric_many_decimals": (
        "DuckDB divides decimals as floating-point numbers"
    ),
    "WindowFunctionTest.test_window_range": "The test expects an order of rows without ORDER BY",
}

# Features of Python and SQLAlchemy, not of the database.
ENVIRONMENT: Final = frozenset(
    "asyncio async_dialect freethreading greenlet patch_library pep649 python312 python314 skip_mysql_on_windows "
    "sqlalchemy2_stubs fail_python314b1 not_python314 cextensions gil_enabled cpython no_greenlet".split()
)


def reason_by_feature() -> dict[str, str]:
    return {name: reason for reason, names in FEATURES.items() for name in names.split()}
