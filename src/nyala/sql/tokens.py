"""Cuts SQL text into tokens, and finds the clauses of a statement.

    tokens("UPDATE t SET a = (1, 2)")      words, names, texts, numbers, parameters and symbols, each with its place
    TokenReader(text)                      goes from keyword to keyword and takes the text between them

This is not a parser: DuckDB's parser decides what is valid. The reader only finds where a clause
begins and ends. Expressions are cut out as they are, with their comments, and DuckDB evaluates them.

Invariants
    K1  The text of a token is `text[begin:end]`, and tokens do not overlap. Comments and spaces are
        between tokens.
    K2  After VALUES, a list of at least 16 rows of literals and parameters is one token, of the kind
        "rows". After IN, a list of at least 500 of them is one token of the kind "list", with its
        brackets. So a statement with many constants has few tokens.
    K3  A keyword inside parentheses, brackets, braces or CASE … END does not end a clause, nor does one
        that is a name (after a point or AS) or the FROM of IS DISTINCT FROM.

Source: PostgreSQL, "Lexical Structure", which DuckDB's parser follows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from nyala.errors import InvalidArgumentError
from nyala.sql.literals import LIST, PARAMETER, ROWS, row_at, shortened_list

__all__ = [
    "Token",
    "TokenReader",
    "after_space",
    "begins_of_texts",
    "main_keyword",
    "parameters",
    "quoted",
    "quoted_text",
    "replaced",
    "split_statements",
    "statement_end",
    "tokens",
    "with_first_rows",
    "with_names",
    "with_short_lists",
]

Kind: TypeAlias = Literal["word", "name", "text", "number", "parameter", "symbol", "rows", "list"]

_COMMENTS_MAX: Final = 20


def _comment() -> str:
    """Return the pattern of a `/* … */` comment, which has others inside, as in PostgreSQL."""
    inside = ""
    for _ in range(_COMMENTS_MAX):
        inside = rf"/\*(?:[^*/]++|\*(?!/)|/(?!\*){'|' if inside else ''}{inside})*+\*/"
    return inside


_SPACE: Final = re.compile(r"(?: \s+ | --[^\n\r]* | COMMENT )*+".replace("COMMENT", _comment()), re.VERBOSE)
# Spaces and comments, then one alternative per kind, or the end. A dollar-quoted text ends with its own tag.
_TOKEN: Final = re.compile(
    r"""
    (?: \s+ | --[^\n\r]* | COMMENT )*+
    (?: (?P<number>(?:[0-9]+(?:_[0-9]+)*(?:\.(?:[0-9]+(?:_[0-9]+)*)?)?|\.[0-9]+(?:_[0-9]+)*)(?:[eE][+-]?[0-9]+)?)
      | (?P<text>[eE]'[^'\\]*+(?:(?:''|\\.)[^'\\]*+)*+' | [xXbB]?'[^']*+(?:''[^']*+)*+'
               | \$(?P<tag>(?:[^\W\d]\w*)?)\$.*?\$(?P=tag)\$)
      | (?P<name>"[^"]*+(?:""[^"]*+)*+" | `[^`]*`)
      | (?P<word>[^\W\d][\w$]*)
      | (?P<parameter>\$\w+ | \?)
      | (?P<symbol><=|>=|<>|!=|==|::|:=|=>|\|\||->>|->|.)
      | \Z )
    """.replace("COMMENT", _comment()),
    re.VERBOSE | re.DOTALL,
)
_REMEMBERED_CHARS: Final = 1 << 18
# Of one longer text, such as an INSERT of many rows of literals, the tokens are remembered if they are few.
_REMEMBERED_TOKENS: Final = 1 << 10
_long_text: Final[dict[str, Sequence[Token]]] = {}
_SHOWN_CHARS: Final = 40
_MAIN_KEYWORDS: Final = frozenset(
    ("SELECT", "FROM", "VALUES", "TABLE", "INSERT", "UPSERT", "REPLACE", "UPDATE", "DELETE", "MERGE")
)
# A longer text is split without counting its lines for each statement.
_LINES_BEFORE_MAX: Final = 2000
# Quotes that the pattern finds as symbols: the literal or the name that they begin is not closed.
_UNCLOSED: Final = frozenset("'\"`$")
_MANY: Final = frozenset(("rows", "list"))
_OPENS, _CLOSES = frozenset("([{"), frozenset(")]}")
_PAIRS: Final = {"(": ")", "[": "]", "{": "}", "CASE": "END"}


class Token(NamedTuple):  # six times as fast to make as a frozen dataclass
    """A token and its place. `keyword` is the text of a word in upper case, and of a symbol as it is."""

    kind: Kind
    text: str
    begin: int
    end: int
    keyword: str

    @property
    def name(self) -> str:
        """The identifier that a word or a quoted name means."""
        if self.text[:1] == '"':
            return self.text[1:-1].replace('""', '"')
        return self.text[1:-1] if self.text[:1] == "`" else self.text

    @property
    def is_identifier(self) -> bool:
        return self.kind in ("word", "name")


def tokens(text: str) -> Sequence[Token]:
    """Return the tokens of the text, without spaces and comments."""
    if len(text) <= _REMEMBERED_CHARS:
        return _remembered(text)
    found = _long_text.get(text)
    if found is None:
        found = _tokens(text)
        if len(found) <= _REMEMBERED_TOKENS:
            _long_text.clear()
            _long_text[text] = found
    return found


@lru_cache(maxsize=16)
def _remembered(text: str) -> Sequence[Token]:
    """The readers of one statement cut the same text several times."""
    return _tokens(text)


def _tokens(text: str) -> tuple[Token, ...]:
    out: list[Token] = []
    place: int | None = 0
    while place is not None:
        place = _read_tokens(text, place, out)
    return tuple(out)


def _read_tokens(text: str, place: int, out: list[Token]) -> int | None:
    """Append the tokens from `place` on; return where to go on after rows or a list, or None at the end."""
    for match in _TOKEN.finditer(text, place):
        kind: Any = "text" if match.lastgroup == "tag" else match.lastgroup
        if kind is None:  # the end
            break
        found = match[kind]
        end = match.end()
        keyword = found.upper() if kind == "word" else found if kind == "symbol" else ""
        out.append(Token(kind, found, end - len(found), end, keyword))
        if keyword == "VALUES" and (rows := ROWS.match(text, end)):
            out.append(Token("rows", rows[1], *rows.span(1), ""))
            return rows.end()
        if keyword == "IN" and (listed := LIST.match(text, end)):
            out.append(Token("list", listed[1], *listed.span(1), ""))
            return listed.end()
    return None


def parameters(found: Iterable[Token]) -> Iterator[Token]:
    """Yield the parameters among the tokens, also those inside of rows and lists."""
    for token in found:
        if token.kind == "parameter":
            yield token
        elif token.kind in _MANY:
            for match in PARAMETER.finditer(token.text):
                if match[1]:
                    begin, end = match.span(1)
                    yield Token("parameter", match[1], token.begin + begin, token.begin + end, "")


def begins_of_texts(found: Iterable[Token]) -> Iterator[int]:
    """Yield where string literals begin, also those inside of rows and lists."""
    for token in found:
        if token.kind == "text":
            yield token.begin
        elif token.kind in _MANY:
            yield from (token.begin + each.begin for each in _tokens(token.text) if each.kind == "text")


def with_first_rows(text: str) -> str:
    """Return the text with only the first row of each token of the kind "rows"."""
    found = (token for token in tokens(text) if token.kind == "rows")
    return replaced(text, [(token.begin, token.end, row_at(token.text, 0)) for token in found])


def with_short_lists(text: str) -> str:
    """Return the text with only the first value of each token of the kind "list"."""
    found = (token for token in tokens(text) if token.kind == "list")
    return replaced(text, [(token.begin, token.end, shortened_list(token.text)) for token in found])


def quoted(name: str) -> str:
    """Return the name as a quoted identifier."""
    return '"' + name.replace('"', '""') + '"'


def quoted_text(value: str) -> str:
    """Return the value as a text literal."""
    return "'" + value.replace("'", "''") + "'"


def replaced(text: str, edits: Iterable[tuple[int, int, str]]) -> str:
    """Return the text with each [begin, end) replaced; no two of them overlap. Without edits: the same object."""
    ordered = sorted(edits)
    if not ordered:
        return text
    parts, done = [], 0
    for begin, end, new in ordered:
        parts += [text[done:begin], new]
        done = end
    return "".join([*parts, text[done:]])


def split_statements(text: str) -> list[str]:
    """Return the statements of a text that `;` separates, without empty ones.

    Each begins with the line breaks that the text has before it, so errors name lines of the text.
    """
    spans, begin, depth = [], -1, 0
    for token in tokens(text):
        if token.kind == "symbol":
            depth += (token.text in _OPENS) - (token.text in _CLOSES)
            if token.text == ";" and depth <= 0:
                spans.append((begin, token.begin))
                begin, depth = -1, 0
                continue
        if begin < 0:
            begin = token.begin
    spans.append((begin, len(text)))
    out, line, counted = [], 0, 0
    for lower, upper in spans:
        if lower >= 0:
            line, counted = line + text.count("\n", counted, lower), lower
            out.append("\n" * min(line, _LINES_BEFORE_MAX) + text[lower:upper].rstrip())
    return out


def main_keyword(found: Sequence[Token]) -> str:
    """Return the keyword that says what a statement does: the first one, or the one after a WITH clause."""
    _, place = with_names(found)
    return found[place].keyword if found[place : place + 1] and _is_main(found[place]) else found[0].keyword


def _is_main(token: Token) -> bool:
    return token.keyword in _MAIN_KEYWORDS


def with_names(found: Sequence[Token]) -> tuple[list[str], int]:
    """Return the names that a WITH clause at the beginning defines, and the place of the token after the clause."""
    names: list[str] = []
    if not found or found[0].keyword != "WITH":
        return names, 0
    is_recursive = found[1:3] and found[1].keyword == "RECURSIVE" and found[2].is_identifier
    place = 2 if is_recursive and found[2].keyword != "AS" else 1
    while place < len(found):
        names.append(found[place].name)
        place = _after_query(found, place + 1)
        if found[place : place + 1] and found[place].text == ",":
            place += 1
        else:
            break
    return names, place


def _after_query(found: Sequence[Token], place: int) -> int:
    """Return the place after `AS [MATERIALIZED] (…)`, which follows the name and the columns."""
    depth, begun = 0, False
    for index in range(place, len(found)):
        token = found[index]
        if token.kind == "symbol":
            depth += (token.text in _OPENS) - (token.text in _CLOSES)
            if begun and not depth:
                return index + 1
        begun = begun or (token.keyword == "AS" and not depth)
    return len(found)


def after_space(text: str, begin: int) -> int:
    """Return where the next token begins: behind spaces and comments."""
    found = _SPACE.match(text, begin)
    return begin if found is None else found.end()


def statement_end(text: str, begin: int = 0) -> int | None:
    """Return where the statement that starts at `begin` ends, after its `;`; None: it has no end yet."""
    depth = 0
    for match in _TOKEN.finditer(text, begin):
        if match.lastgroup != "symbol":
            continue
        sign = match["symbol"]
        if sign in _UNCLOSED or text.startswith("/*", match.end() - 1):
            return None
        depth += (sign in _OPENS) - (sign in _CLOSES)
        if sign == ";" and depth <= 0:
            return match.end()
    return None


class TokenReader:
    """Reads the tokens of one statement in order.

    `at` looks, `take` reads what may come, `need` reads what must come, and `until` takes the text
    up to a keyword. Keywords are given in upper case.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: Sequence[Token] = tokens(text)
        self.index = 0

    # ------------------------------------------------------------------------------------------ look

    @property
    def ended(self) -> bool:
        return self.index >= len(self.tokens)

    @property
    def here(self) -> int:
        """Where the next token begins; at the end, the end of the text."""
        return len(self.text) if self.ended else self.tokens[self.index].begin

    def peek(self, ahead: int = 0) -> Token | None:
        index = self.index + ahead
        return self.tokens[index] if index < len(self.tokens) else None

    def at(self, *keywords: str) -> bool:
        """Whether these keywords or symbols come next."""
        if len(keywords) == 1:
            return self.index < len(self.tokens) and self.tokens[self.index].keyword == keywords[0]
        upper = self.index + len(keywords)
        return upper <= len(self.tokens) and all(
            token.keyword == keyword
            for token, keyword in zip(self.tokens[self.index : upper], keywords, strict=True)
        )

    def at_any(self, *stops: Sequence[str]) -> bool:
        return any(self.at(*stop) for stop in stops)

    # ------------------------------------------------------------------------------------------ read

    def take(self, *keywords: str) -> bool:
        """Read these keywords if they come next, and return whether they did."""
        if not self.at(*keywords):
            return False
        self.index += len(keywords)
        return True

    def need(self, *keywords: str) -> None:
        """Read these keywords. Raises: InvalidArgumentError."""
        if not self.take(*keywords):
            raise self.error(f"expected {' '.join(keywords)}")

    def next(self) -> Token:
        """Read any token. Raises: InvalidArgumentError at the end."""
        token = self.peek()
        if token is None:
            raise self.error("the statement ends too early")
        self.index += 1
        return token

    def identifier(self) -> str:
        """Read a name, quoted or not. Raises: InvalidArgumentError."""
        token = self.peek()
        if token is None or not token.is_identifier:
            raise self.error("expected a name")
        self.index += 1
        return token.name

    def qualified(self) -> list[str]:
        """Read a name with its qualifiers, such as `main.t`. Raises: InvalidArgumentError."""
        names = [self.identifier()]
        while self.take("."):
            names.append(self.identifier())
        return names

    def until(self, *stops: Sequence[str]) -> str:
        """Return the text up to one of the keyword sequences, a closing bracket, or the end (K3)."""
        begin, end = self.here, self.here
        ends = _CLOSES.union(stop[0] for stop in stops)
        open_: list[str] = []  # what closes each bracket and CASE that is open
        before = ""
        for index in range(self.index, len(self.tokens)):
            token = self.tokens[index]
            word = "" if before in (".", "AS") and token.kind == "word" else token.keyword
            if word in ends and not open_:
                self.index = index
                if word in _CLOSES or (self.at_any(*stops) and not (before == "DISTINCT" and word == "FROM")):
                    break
            if word in _PAIRS:
                open_.append(_PAIRS[word])
            elif open_ and word == open_[-1]:
                open_.pop()
            end, before = token.end, token.keyword
        else:
            self.index = len(self.tokens)
        return self.text[begin:end]

    def rest(self) -> str:
        """Return the text that is left."""
        begin = self.here
        self.index = len(self.tokens)
        return self.text[begin:].rstrip()

    def parenthesised(self) -> str:
        """Read `( … )` and return the text inside. Raises: InvalidArgumentError."""
        self.need("(")
        inside = self.until()
        self.need(")")
        return inside

    def listed(self, *stops: Sequence[str]) -> list[str]:
        """Return the texts that commas separate, up to one of the keyword sequences or the end."""
        return list(self._items(stops))

    def _items(self, stops: Sequence[Sequence[str]]) -> Iterator[str]:
        yield self.until((",",), *stops)
        while self.take(",") and not self._is_at_end(stops):
            yield self.until((",",), *stops)

    def _is_at_end(self, stops: Sequence[Sequence[str]]) -> bool:
        """Whether a list ends here: DuckDB allows a comma after its last item."""
        return self.ended or self.tokens[self.index].text in _CLOSES or self.at_any(*stops)

    def names(self) -> list[str]:
        """Read `(name, …)`. Raises: InvalidArgumentError."""
        self.need("(")
        names = [self.identifier()]
        while self.take(",") and not self.at(")"):
            names.append(self.identifier())
        self.need(")")
        return names

    def finish(self) -> None:
        """Check that nothing is left. Raises: InvalidArgumentError."""
        if not self.ended:
            raise self.error("expected the end of the statement")

    def error(self, problem: str) -> InvalidArgumentError:
        """Return the error for what comes next, with its line."""
        if self.ended:
            return InvalidArgumentError(f"{problem}, at the end of: {_shown(self.text)}")
        line = self.text.count("\n", 0, self.here) + 1
        return InvalidArgumentError(f"LINE {line}: {problem}, not {_shown(self.text[self.here :])}")


def _shown(text: str) -> str:
    text = " ".join(text.split())
    return repr(text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…")
