"""LIKE and ILIKE: parses a pattern, and matches it with the cheapest Arrow function that can.

    'ab%'    -> starts with            'ab'       -> equals
    '%ab'    -> ends with              'a_c%'     -> regular expression \\Aa.c.*\\z over whole characters
    '%ab%'   -> contains

Arrow's own `match_like` is not used, because it takes every backslash for an escape character.
Arrow matches regular expressions with the library RE2, in linear time for every pattern. RE2
refuses patterns that would need too much memory. `compile` raises this error before a scan begins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from nyala import compute as pc
from nyala.errors import InvalidArgumentError
from nyala.lazy_values import LazyValues, lazy_value
from nyala.schema.expressions.literals import quote

__all__ = ["LikePattern", "parse_like", "text_after_prefix"]

_ANY: Final = 0  # %
_ONE: Final = 1  # _
_SURROGATES: Final = (0xD800, 0xDFFF)


@dataclass(frozen=True)
class LikePattern(LazyValues):
    """A pattern as a sequence of texts and wildcards. Two texts never follow one another."""

    parts: tuple[str | int, ...]
    any_case: bool = False
    """ILIKE: the texts in `parts` are in lower case, and values are converted to lower case before
    the match.
    """

    @property
    def exact(self) -> str | None:
        """The only text that matches; None if several texts may match."""
        if not self.parts:
            return ""
        return self.parts[0] if len(self.parts) == 1 and isinstance(self.parts[0], str) else None

    @property
    def prefix(self) -> str:
        """The text that every match begins with."""
        return self.parts[0] if self.parts and isinstance(self.parts[0], str) else ""

    @property
    def matches_all(self) -> bool:
        """Whether the pattern matches every text."""
        return self.parts == (_ANY,)

    def match(self, array: pa.Array) -> pa.Array:
        """Return a bool array that says which texts match; NULL where `array` is NULL."""
        parts = self.parts
        if self.any_case:
            array = pc.utf8_lower(array)
        if self.exact is not None:
            return pc.equal(array, pa.scalar(self.exact, array.type))
        if len(parts) == 2 and isinstance(parts[0], str) and parts[1] == _ANY:
            return pc.starts_with(array, parts[0])
        if len(parts) == 2 and isinstance(parts[1], str) and parts[0] == _ANY:
            return pc.ends_with(array, parts[1])
        if len(parts) == 3 and isinstance(parts[1], str) and parts[0] == parts[2] == _ANY:
            return pc.match_substring(array, parts[1])
        return pc.match_substring_regex(array, self._regex)

    @lazy_value
    def _regex(self) -> str:
        wildcards = {_ANY: ".*", _ONE: "."}
        body = "".join(wildcards[p] if isinstance(p, int) else _quote_regex(p) for p in self.parts)
        return rf"(?s)\A{body}\z"

    def compile(self, where: str) -> None:
        """Let Arrow compile the pattern, so that a pattern that is too large fails before a scan.

        where: the beginning of the error message, which names the column or expression.
        Raises: InvalidArgumentError if the pattern is too large.
        """
        try:
            self.match(pa.array([""], pa.string()))
        except pa.ArrowInvalid as error:
            reason = str(error).splitlines()[0][:100]
            raise InvalidArgumentError(
                f"{where}the LIKE pattern is too large ({reason}); shorten it"
            ) from None


def parse_like(pattern: str, escape: str | None, where: str, any_case: bool = False) -> LikePattern:
    """Parse a LIKE pattern. Raises: InvalidArgumentError; `where` begins the message."""
    if escape is not None and len(escape) != 1:
        raise InvalidArgumentError(f"{where}ESCAPE expects one character, got {quote(escape)}")
    parts: list[str | int] = []
    text: list[str] = []

    def end_text() -> None:
        if text:
            parts.append("".join(text))
            text.clear()

    characters = iter(pattern)
    for char in characters:
        if char == escape:
            following = next(characters, None)
            if following not in ("%", "_", escape):
                raise InvalidArgumentError(
                    f"{where}in the LIKE pattern {quote(pattern)} the escape {escape!r} is followed by "
                    f"{'the end' if following is None else repr(following)}; "
                    f"only %, _ and {escape!r} itself can be escaped"
                )
            text.append(following)
        elif char == "%":
            end_text()
            if not parts or parts[-1] != _ANY:
                parts.append(_ANY)
        elif char == "_":
            end_text()
            parts.append(_ONE)
        else:
            text.append(char)
    end_text()
    if any_case:
        parts = [pc.utf8_lower(pa.scalar(part)).as_py() if isinstance(part, str) else part for part in parts]
    return LikePattern(tuple(parts), any_case)


def _quote_regex(text: str) -> str:
    # All other characters stand for themselves, except NUL, which would end the pattern.
    return re.sub(r"[\\.+*?()|\[\]{}^$]", lambda match: "\\" + match.group(), text).replace("\0", r"\x00")


def text_after_prefix(prefix: str) -> str | None:
    """Return the least text that is greater than all texts with this prefix.

    Returns None if no text is greater.
    """
    code_points: list[Any] = [ord(char) for char in prefix]
    while code_points:
        following = code_points.pop() + 1
        if _SURROGATES[0] <= following <= _SURROGATES[1]:
            following = _SURROGATES[1] + 1  # UTF-8 text contains no surrogates
        if following <= 0x10FFFF:
            return "".join(map(chr, [*code_points, following]))
    return None
