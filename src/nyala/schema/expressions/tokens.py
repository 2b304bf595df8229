"""Divides the SQL text of a condition or expression into tokens. Its errors show the place in the
text.

    host = 'a' AND "odd name" >= -1.5e3 AND raw = X'00FF'
    name op string name quoted    op op number …    binary

The `text` of a token is its source. Its `value` is what the source means: a name or string without
quotes, bytes, an int or a Decimal. Keywords are name tokens, which the parser tests with
`is_keyword`. So a column may be called `date`: the parser reads the word as a keyword only where a
keyword may follow.

A text has at most TEXT_LENGTH_MAX characters. Parentheses nest at most DEPTH_MAX deep, because the
parser uses five Python frames per level, and Python allows about a thousand.
Source: SQL:2016 part 2, 5.2 and 5.3 (tokens and literals).
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Iterator
from typing import Final, NamedTuple, NoReturn

from nyala.errors import InvalidArgumentError
from nyala.schema.expressions.literals import NUMBER_DIGITS_MAX

__all__ = ["DEPTH_MAX", "TEXT_LENGTH_MAX", "Token", "TokenStream", "scan", "syntax_error"]

# That is an IN list of about 50,000 numbers. Users pass a longer list as a parameter, or with
# col(...).isin.
TEXT_LENGTH_MAX: Final = 500_000
DEPTH_MAX: Final = 100
_SHOWN: Final = 60  # how many characters an error shows before and after its place

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+)
      | (?P<binary>[xX]'[^']*')
      | (?P<name>[^\W\d]\w*)
      | (?P<quoted>"(?:[^"]|"")*")
      | (?P<string>'(?:[^']|'')*')
      | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
      | (?P<param>\?|:(?!:)[^\W\d]\w*|\$[^\W\d]\w*)
      | (?P<op>::|<>|<=|>=|!=|==|\|\||[-+*/%=<>(),.])""",
    re.VERBOSE,
)
_UNENDED: Final = {
    "'": "expected a closing ' for the string that begins here, but the text ends",
    '"': 'expected a closing " for the name that begins here, but the text ends',
}
# Characters that other languages use, and what to write in their place.
_ADVICE: Final = {
        "[": "write a list in parentheses, as in a IN (1, 2)",
        "&": "join conditions with AND",
        "|": "join conditions with OR",
        "!": "write NOT a, or a <> b",
        "~": "write NOT a, or a LIKE 'x%'",
        "`": 'write a name with special characters in double quotes, as in "a b"',
        ";": "remove it",
        **dict.fromkeys("$:@", "write a parameter as ?, :name or $name"),
        **dict.fromkeys("‘’“”", "write a text in straight single quotes, as in 'x'"),
}  # fmt: skip


class Token(NamedTuple):
    kind: str  # name, quoted, string, binary, number, param, op, end
    text: str
    value: str | bytes | int | decimal.Decimal | None
    position: int

    def is_keyword(self, *words: str) -> bool:
        return self.kind == "name" and self.text.upper() in words

    def is_op(self, *ops: str) -> bool:
        return self.kind == "op" and self.text in ops

    def describe(self) -> str:
        if self.kind == "end":
            return "the text ends"
        return "found " + (self.text if len(self.text) <= 30 else self.text[:29] + "…")


def syntax_error(source: str, position: int, message: str) -> InvalidArgumentError:
    """Return an error that shows the message, the line of `position`, and a caret below this
    character.
    """
    line_start = source.rfind("\n", 0, position) + 1
    line_end = source.find("\n", position)
    line_end = len(source) if line_end < 0 else line_end
    lower, upper = max(line_start, position - _SHOWN), min(line_end, position + _SHOWN)
    prefix = "…" if lower > line_start else ""
    shown = prefix + source[lower:upper] + ("…" if upper < line_end else "")
    shown = "".join(char if char.isprintable() else " " for char in shown)
    caret = " " * (len(prefix) + position - lower) + "^"
    line = source.count("\n", 0, position) + 1
    where = f"character {position - line_start + 1}" + (f" of line {line}" if "\n" in source else "")
    return InvalidArgumentError(f"{message} (at {where})\n  {shown}\n  {caret}")


def scan(source: str) -> Iterator[Token]:
    """Yield the tokens of `source`, then tokens of kind "end" forever. Raises:
    InvalidArgumentError.
    """
    position = 0
    while position < len(source):
        match = _TOKEN.match(source, position)
        if match is None:
            char = source[position]
            advice = f": {_ADVICE[char]}" if char in _ADVICE else ""
            raise syntax_error(source, position, _UNENDED.get(char, f"unexpected character {char!r}{advice}"))
        kind, text = str(match.lastgroup), match.group()
        if kind != "space":
            yield Token(kind, text, _value(source, kind, text, position), position)
        position = match.end()
        following = source[position : position + 1]
        if kind == "number" and (following.isalnum() or following == "_"):
            raise syntax_error(source, position, "expected a space or an operator after the number")
    while True:
        yield Token("end", "", None, len(source))


def _value(source: str, kind: str, text: str, position: int) -> str | bytes | int | decimal.Decimal | None:
    if kind == "quoted":
        name = text[1:-1].replace('""', '"')
        if not name:
            raise syntax_error(source, position, 'expected a name between the double quotes, found ""')
        return name
    if kind == "string":
        return text[1:-1].replace("''", "'")
    if kind == "binary":
        try:
            if not text[2:-1].isalnum() and text[2:-1]:
                raise ValueError
            return bytes.fromhex(text[2:-1])
        except ValueError:
            raise syntax_error(
                source, position, "expected pairs of hexadecimal digits, as in X'00ff'"
            ) from None
    if kind == "number":
        return _number(source, text, position)
    return text if kind == "name" else text[1:] if kind == "param" else None


def _number(source: str, text: str, position: int) -> int | decimal.Decimal:
    mantissa, _, exponent = text.lower().partition("e")
    if len(mantissa) > NUMBER_DIGITS_MAX or len(exponent) > 7:
        raise syntax_error(source, position, f"expected a number of at most {NUMBER_DIGITS_MAX} digits")
    if mantissa.isdigit() and not exponent:
        return int(mantissa)
    return decimal.Decimal(text)


class TokenStream:
    """The tokens of one text, and the position of the parser in them. Not thread-safe."""

    def __init__(self, source: str, length_max: int = TEXT_LENGTH_MAX) -> None:
        if len(source) > length_max:
            raise InvalidArgumentError(
                f"the text has {len(source)} characters, more than the limit of {length_max}; "
                "pass a long list as a parameter (k IN ?) or with nyala.col('k').isin(values)"
            )
        self.source = source
        self._tokens = scan(source)
        self._following: Token | None = None
        self.token = next(self._tokens)  # the token that the parser looks at
        self._depth = 0

    def peek(self) -> Token:
        """Return the token after the current one, without moving to it."""
        if self._following is None:
            self._following = next(self._tokens)
        return self._following

    def advance(self) -> Token:
        """Return the current token, and move to the next. At the end, return the end token again."""
        token = self.token
        self.token = self.peek()
        self._following = None
        return token

    def accept_keyword(self, *words: str) -> Token | None:
        return self.advance() if self.token.is_keyword(*words) else None

    def accept_op(self, *ops: str) -> Token | None:
        return self.advance() if self.token.is_op(*ops) else None

    def expect_op(self, op: str, expected: str) -> Token:
        return self.accept_op(op) or self.fail(expected)

    def expect_keyword(self, word: str, expected: str) -> Token:
        return self.accept_keyword(word) or self.fail(expected)

    def fail(self, expected: str, token: Token | None = None) -> NoReturn:
        """Raise the syntax error "expected …, found …" at `token`, by default the current token."""
        token = token or self.token
        but = ", but " if token.kind == "end" else ", "
        raise syntax_error(self.source, token.position, f"expected {expected}{but}{token.describe()}")

    def enter(self) -> None:
        """Count an open parenthesis. Raises: InvalidArgumentError if more than DEPTH_MAX are open."""
        self._depth += 1
        if self._depth > DEPTH_MAX:
            position = self.token.position
            raise syntax_error(self.source, position, f"parentheses nest more than {DEPTH_MAX} levels deep")

    def leave(self) -> None:
        self._depth -= 1
