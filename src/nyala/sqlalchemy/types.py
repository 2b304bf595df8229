"""Types of SQLAlchemy whose values are converted, because a store keeps them in another form.

    DateTime()    stored as a timestamp in UTC; returned in UTC without a zone
    Time()        stored as text such as 03:04:05.000006
    Numeric()     stored as a decimal; DuckDB returns quotients of decimals as floats, which become Decimal

Source: docs/reference/sqlalchemy.md, "Types".
"""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

from sqlalchemy import types


class NyalaDateTime(types.DateTime):
    """A date with a time. Without `timezone=True`, its values are in UTC and have no zone."""

    def bind_processor(self, dialect: Any) -> Any:
        def process(value: Any) -> Any:
            if isinstance(value, dt.datetime) and value.tzinfo is None:
                return value.replace(tzinfo=dt.UTC)
            return value

        return process

    def result_processor(self, dialect: Any, coltype: object) -> Any:
        if self.timezone:
            return None

        def process(value: Any) -> Any:
            return (
                value.astimezone(dt.UTC).replace(tzinfo=None) if value is not None and value.tzinfo else value
            )

        return process


class NyalaTime(types.Time):
    """A time of day, stored as text."""

    def bind_processor(self, dialect: Any) -> Any:
        return lambda value: value.isoformat() if isinstance(value, dt.time) else value

    def result_processor(self, dialect: Any, coltype: object) -> Any:
        return lambda value: dt.time.fromisoformat(value) if isinstance(value, str) else value

    def literal_processor(self, dialect: Any) -> Any:
        return lambda value: f"'{value.isoformat()}'"


class NyalaNumeric(types.Numeric):  # type: ignore[type-arg]
    """A decimal number. With `asdecimal=False`, its values are floats."""

    def result_processor(self, dialect: Any, coltype: object) -> Any:
        if not self.asdecimal:
            return lambda value: None if value is None else float(value)
        return lambda value: decimal.Decimal(str(value)) if isinstance(value, float) else value
