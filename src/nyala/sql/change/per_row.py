"""Checks that an expression of SET or VALUES gives one value for each row, and does not depend on other rows.

Source: DuckDB refuses these, too, and also window functions in UPDATE without FROM, which Nyala allows.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from nyala.errors import InvalidArgumentError
from nyala.sql.tokens import Token, tokens

__all__ = ["check_no_window", "check_one_value"]

_MANY: Final = frozenset(("unnest", "unlist", "generate_subscripts"))
_BEGINS_QUERY: Final = frozenset(("SELECT", "FROM", "WITH", "VALUES", "TABLE"))


def check_one_value(expression: str, what: str, *, is_list: bool = False) -> None:
    """Check that an expression does not have several values, as unnest has. Raises: InvalidArgumentError.

    what: the expression in the error, such as "SET v".
    is_list: whether this is a list of expressions, where COLUMNS can stand for several.
    """
    found = _without_queries(tokens(expression))
    for token, following in itertools.pairwise(found):
        name = token.name.lower() if token.is_identifier and following.text == "(" else ""
        if name in _MANY or (name == "columns" and not is_list):
            raise InvalidArgumentError(
                f"{what}: {token.text} can have several values, and a row takes one: use it in a subquery that "
                "returns one value"
            )


def check_no_window(expression: str, what: str) -> None:
    """Check that an expression has no window function outside of a subquery. Raises: InvalidArgumentError."""
    found = _without_queries(tokens(expression))
    if any(before.text == ")" and token.keyword == "OVER" for before, token in itertools.pairwise(found)):
        raise InvalidArgumentError(
            f"{what}: a window function is not possible here, because a row of the table can have several partners: "
            "compute it in a subquery of the source"
        )


def _without_queries(found: Sequence[Token]) -> list[Token]:
    """Return the tokens outside of subqueries."""
    out: list[Token] = []
    depth = 0  # of parentheses inside a subquery
    for place, token in enumerate(found):
        begins = token.text == "(" and place + 1 < len(found) and found[place + 1].keyword in _BEGINS_QUERY
        if depth or begins:
            depth += (token.text == "(") - (token.text == ")")
        else:
            out.append(token)
    return out
