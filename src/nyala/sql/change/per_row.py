"""Checks that an expression of SET or VALUES has one value for each row, which does not depend on other rows.

DuckDB refuses the same expressions, and also window functions in an UPDATE without FROM, which
Nyala allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nyala.errors import InvalidArgumentError
from nyala.sql.tokens import QUERIES, Token, tokens, with_neighbours

_MANY: Final = frozenset(("unnest", "unlist", "generate_subscripts"))


def check_one_value(expression: str, what: str, *, is_list: bool = False) -> None:
    """Check that an expression does not return several values, as unnest does. Raises: InvalidArgumentError.

    what: the name of the expression in the error, such as "SET v".
    is_list: `expression` is a list of expressions, in which COLUMNS(…) is allowed.
    """
    for _, token, after in with_neighbours(_without_queries(tokens(expression))):
        name = token.name.lower() if token.is_identifier and after.text == "(" else ""
        if name in _MANY or (name == "columns" and not is_list):
            raise InvalidArgumentError(
                f"{what}: {token.text} can have several values, and a row takes one: use it in a subquery that "
                "returns one value"
            )


def check_no_window(expression: str, what: str) -> None:
    """Check that an expression has no window function outside of a subquery. Raises: InvalidArgumentError."""
    found = with_neighbours(_without_queries(tokens(expression)))
    if any(before.text == ")" and token.keyword == "OVER" for before, token, _ in found):
        raise InvalidArgumentError(
            f"{what}: a window function is not possible here, because a row of the table can match several rows: "
            "compute it in a subquery of the source"
        )


def _without_queries(found: Sequence[Token]) -> list[Token]:
    """Return the tokens outside of subqueries."""
    out: list[Token] = []
    depth = 0  # of parentheses inside a subquery
    for _, token, after in with_neighbours(found):
        if depth or (token.text == "(" and after.keyword in QUERIES):
            depth += (token.text == "(") - (token.text == ")")
        else:
            out.append(token)
    return out
