"""Spark's errors about unknown names become one sentence with a suggestion."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger

from nyala.errors import ColumnNotFoundError, TableNotFoundError
from nyala.spark.statements.unknown_names import rewriting_unknown_names

TABLES = ["orders", "customers", "Läger"]
COLUMNS = ["id", "price", "customer"]


class SparkError(AnalysisException):
    """A stand-in for Spark's error. Like pyspark's, it is logged when it is made."""

    def __init__(self, condition: str, **parameters: str) -> None:
        Exception.__init__(self, condition)
        self._said = condition, parameters
        logger = PySparkLogger.getLogger("SQLQueryContextLogger")
        logger.error("a long line", errorClass=condition)

    def getCondition(self) -> str:
        return self._said[0]

    def getMessageParameters(self) -> dict[str, str]:
        return self._said[1]


NO_TABLE, NO_COLUMN = "TABLE_OR_VIEW_NOT_FOUND", "UNRESOLVED_COLUMN.WITH_SUGGESTION"


@pytest.fixture
def logged() -> Any:
    """Return the records that reach pyspark's logger."""
    records: list[logging.LogRecord] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler = Handler()
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    others, logger.handlers = logger.handlers, [handler]
    yield records
    logger.handlers = others


@pytest.mark.parametrize(
    ("condition", "parameters", "kind", "says"),
    [
        (NO_TABLE, {"relationName": "`ordres`"}, TableNotFoundError,
         "no table 'ordres' in the store 's', and no such table or view in Spark; did you mean 'orders'?"),
        (NO_TABLE, {"relationName": "`main`.`CUSTOMER`"}, TableNotFoundError, "'main.CUSTOMER' in the store 's'"),
        (NO_TABLE, {"relationName": "`Orders`"}, TableNotFoundError, "FROM Orders instead of TABLE Orders"),
        (NO_TABLE, {"relationName": "`main`.`orders`"}, TableNotFoundError, "; did you mean 'orders'?"),
        (NO_TABLE, {"relationName": "`lager`"}, TableNotFoundError, "did you mean 'Läger'?"),
        (NO_TABLE, {"relationName": "`x``y`"}, TableNotFoundError,
         "no table 'x`y' in the store 's', and no such table or view in Spark; the store has the tables orders, cust"),
        (NO_COLUMN, {"objectName": "`pric`", "proposal": "`id`"}, ColumnNotFoundError, "'pric' in the tables of the "
         "statement; did you mean 'price'?"),
        (NO_COLUMN, {"objectName": "`v`.`nme`", "proposal": "`v`.`name`, `o`.`id`"}, ColumnNotFoundError,
         "no column 'v.nme' in the tables of the statement; did you mean 'name'?"),
        (NO_COLUMN, {"objectName": "`o`.`Price`", "proposal": ""}, ColumnNotFoundError,
         "no column 'o.Price': 'o' is not a table or alias with column 'price'"),
        (NO_COLUMN, {"objectName": "`zzz`"}, ColumnNotFoundError, "the columns are 'customer', 'id', 'price'"),
        ("UNRESOLVED_USING_COLUMN_FOR_JOIN", {"colName": "`idd`", "suggestion": "`id`"}, ColumnNotFoundError, "'id'?"),
    ],
)  # fmt: skip
def test_an_unknown_name_is_one_sentence(
    logged: Any, condition: str, parameters: dict[str, str], kind: type[Exception], says: str
) -> None:
    """Neither Spark's plan nor pyspark's log record is printed."""
    with pytest.raises(kind) as error, rewriting_unknown_names("s", lambda: TABLES, COLUMNS):
        raise SparkError(condition, **parameters)
    assert says in str(error.value) and len(str(error.value).splitlines()) == 1
    assert error.value.__suppress_context__ and isinstance(error.value.__context__, AnalysisException)
    assert not logged


def test_without_a_store_the_message_asks_for_the_folder() -> None:
    with pytest.raises(
        TableNotFoundError, match="no table or view 'orders'; for tables of a store pass store=folder"
    ):
        with rewriting_unknown_names(None, lambda: TABLES, COLUMNS):
            raise SparkError(NO_TABLE, relationName="`orders`")
    with (
        pytest.raises(TableNotFoundError, match="; the store has no tables$"),
        rewriting_unknown_names("s", list, []),
    ):
        raise SparkError(NO_TABLE, relationName="`orders`")


def test_other_errors_and_other_threads_are_not_changed(logged: Any) -> None:
    """Log records of other errors and of other threads are printed."""
    with pytest.raises(SparkError) as raised, rewriting_unknown_names("s", lambda: TABLES, COLUMNS):
        raise SparkError("MISSING_GROUP_BY")
    assert raised.value.getCondition() == "MISSING_GROUP_BY" and len(logged) == 1
    with pytest.raises(ValueError, match="^x$"), rewriting_unknown_names("s", lambda: TABLES, COLUMNS):
        raise ValueError("x")
    with rewriting_unknown_names("s", lambda: TABLES, COLUMNS):
        other = threading.Thread(target=SparkError, args=(NO_TABLE,))
        other.start()
        other.join()
        assert len(logged) == 2
    SparkError(NO_TABLE)
    assert len(logged) == 3
