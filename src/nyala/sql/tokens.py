"""Divides SQL text into tokens, and finds the clauses of a statement.

    tokens("UPDATE t SET a = (1, 2)")      returns words, names, texts, numbers, parameters and symbols
    TokenReader(text)                      goes from keyword to keyword, and returns the text between them

This is not a parser: DuckDB's parser decides what is valid. The reader only finds where a clause
begins and ends. DuckDB evaluates the expressions in a clause, so they keep their text and their
comments.

Invariants
    K1  The text of a token is `text[begin:end]`. Tokens do not overlap. Comments and spaces are not
        tokens.
    K2  After VALUES, at least 16 rows of literals and parameters are one token, of the kind "rows".
        After IN, a list of at least 500 literals and parameters is one token, of the kind "list",
        with its brackets. So a statement with many constants has few tokens.
    K3  A keyword ends a clause only outside of parentheses, brackets, braces and CASE … END. A word
        after a point or AS is a name and not a keyword. The FROM of IS DISTINCT FROM ends no
        clause.

Source: PostgreSQL, "Lexical Structure", which DuckDB's parser follows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Concatenate, Final, Literal, NamedTuple, ParamSpec, TypeAlias, TypeVar

from nyala.errors import InvalidArgumentError
from nyala.sql.literals import LIST, PARAMETER, ROWS, row_at, shortened_list

Kind: TypeAlias = Literal["word", "name", "text", "number", "parameter", "symbol", "rows", "list"]

# The first keywords of queries, and of statements that read rows, write rows, and change tables.
QUERIES: Final = ("SELECT", "FROM", "VALUES", "TABLE", "WITH", "PIVOT", "UNPIVOT", "SUMMARIZE")
READS: Final = (*QUERIES, "(")
WRITES: Final = ("INSERT", "UPSERT", "REPLACE", "UPDATE", "DELETE", "MERGE", "TRUNCATE")
DEFINES: Final = ("CREATE", "ALTER", "DROP", "UNDROP", "COMMENT")

_COMMENTS_MAX: Final = 20


def _comment() -> str:
    """Return the pattern of a `/* … */` comment. It can contain comments, as in PostgreSQL."""
    inside = ""
    for _ in range(_COMMENTS_MAX):
        inside = rf"/\*(?:[^*/]++|\*(?!/)|/(?!\*){'|' if inside else ''}{inside})*+\*/"
    return inside


_SPACE: Final = re.compile(r"(?: \s+ | --[^\n\r]* | COMMENT )*+".replace("COMMENT", _comment()), re.VERBOSE)
# Spaces and comments, then a token of any kind, or the end. A text such as $tag$ … $tag$ ends with its own tag.
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
# The last longer text, such as an INSERT of many rows of literals, is remembered with its tokens if these are few.
_REMEMBERED_TOKENS: Final = 1 << 10
_long_text: Final[dict[str, Sequence[Token]]] = {}
_SHORT_CHARS: Final = 4096
_SHOWN_CHARS: Final = 40
_MAIN_KEYWORDS: Final = frozenset(
    ("SELECT", "FROM", "VALUES", "TABLE", "INSERT", "UPSERT", "REPLACE", "UPDATE", "DELETE", "MERGE")
)
# At most this number of line breaks is put before a statement of a longer text.
_LINES_BEFORE_MAX: Final = 2000
# `_TOKEN` finds one of these signs as a symbol if it begins a text or a name that does not end.
_UNCLOSED: Final = frozenset("'\"`$")
_MANY: Final = frozenset(("rows", "list"))
_OPENS, _CLOSES = frozenset("([{"), frozenset(")]}")
_PAIRS: Final = {"(": ")", "[": "]", "{": "}", "CASE": "END"}


class Token(NamedTuple):  # creating one is six times as fast as creating a frozen dataclass
    """A token at `text[begin:end]`. keyword: a word in upper case, or a symbol; "" for other kinds."""

    kind: Kind
    text: str
    begin: int
    end: int
    keyword: str

    @property
    def name(self) -> str:
        """The identifier without its quotation marks."""
        if self.text[:1] == '"':
            return self.text[1:-1].replace('""', '"')
        return self.text[1:-1] if self.text[:1] == "`" else self.text

    @property
    def is_identifier(self) -> bool:
        return self.kind in ("word", "name")

    @property
    def plain_text(self) -> str | None:
        """The value of a text in single quotes; None for any other token."""
        is_plain = self.kind == "text" and self.text[0] == "'"
        return self.text[1:-1].replace("''", "'") if is_plain else None


_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")


def cached_for_short(
    function: Callable[Concatenate[str, _Arguments], _Result],
) -> Callable[Concatenate[str, _Arguments], _Result]:
    """Decorate a function of a text: cache its results for 256 texts of at most 4,096 characters."""
    cached: Any = lru_cache(maxsize=256)(function)

    def call(text: str, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        result: _Result = (cached if len(text) <= _SHORT_CHARS else function)(text, *args, **kwargs)
        return result

    return call


_EMPTY: Final = Token("symbol", "", 0, 0, "")


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
    """Return the tokens of a short text. They are cached, because several functions read the same text."""
    return _tokens(text)


def _tokens(text: str) -> tuple[Token, ...]:
    out: list[Token] = []
    place: int | None = 0
    while place is not None:
        place = _read_tokens(text, place, out)
    return tuple(out)


def _read_tokens(text: str, place: int, out: list[Token]) -> int | None:
    """Read the tokens of the text, and append them to the list `out`. Begins at the index `place` of the text.

    Stops after a long VALUES or IN list, which is one token. Returns the index of the character after
    the list; None if the end of the text was reached.
    """
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
    """Yield the parameters, such as `?`, also those inside a long VALUES or IN list, which is one token."""
    for token in found:
        if token.kind == "parameter":
            yield token
        elif token.kind in _MANY:
            for match in PARAMETER.finditer(token.text):
                if match[1]:
                    begin, end = match.span(1)
                    yield Token("parameter", match[1], token.begin + begin, token.begin + end, "")


def begins_of_texts(found: Iterable[Token]) -> Iterator[int]:
    """Yield the index in the text at which each string literal begins.

    Includes literals inside a long VALUES or IN list, which is one token.
    """
    for token in found:
        if token.kind == "text":
            yield token.begin
        elif token.kind in _MANY:
            yield from (token.begin + each.begin for each in _tokens(token.text) if each.kind == "text")


def with_neighbours(found: Sequence[Token]) -> Iterator[tuple[Token, Token, Token]]:
    """Yield (token before, token, token after) for each token. At both ends, an empty token is given."""
    return zip([_EMPTY, *found], found, [*found[1:], _EMPTY], strict=False)


def with_first_rows(text: str) -> str:
    """Return the text without the rows of long VALUES lists, except for the first row of each list.

    DuckDB parses the shorter text faster, which is enough to check the statement's form.
    A list is long if it has at least 16 rows, all of literals and parameters.
    """
    found = (token for token in tokens(text) if token.kind == "rows")
    return replaced(text, [(token.begin, token.end, row_at(token.text, 0)) for token in found])


def with_short_lists(text: str) -> str:
    """Return the text without the values of long IN lists, except for the first value of each list.

    The shorter text names the same tables and columns, and DuckDB parses it faster.
    A list is long if it has at least 500 values, all literals or parameters.
    """
    found = (token for token in tokens(text) if token.kind == "list")
    return replaced(text, [(token.begin, token.end, shortened_list(token.text)) for token in found])


def quoted(name: str) -> str:
    """Return the name as a quoted identifier."""
    return '"' + name.replace('"', '""') + '"'


def quoted_text(value: str) -> str:
    """Return the value as a text literal."""
    return "'" + value.replace("'", "''") + "'"


def replaced(text: str, edits: Iterable[tuple[int, int, str]]) -> str:
    """Return the text with each edit (begin, end, new text) applied. The edits do not overlap.

    Without edits, the same object is returned.
    """
    ordered = sorted(edits)
    if not ordered:
        return text
    parts, done = [], 0
    for begin, end, new in ordered:
        parts += [text[done:begin], new]
        done = end
    return "".join([*parts, text[done:]])


def split_statements(text: str) -> list[str]:
    """Return the statements of the text, without empty ones.

    A statement begins with as many line breaks as the text has before it. So errors name the lines
    of the text.
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
    """Return the first keyword of a statement, or the first one after its WITH clause."""
    _, place = with_names(found)
    main = found[place].keyword if place < len(found) else ""
    return main if main in _MAIN_KEYWORDS else found[0].keyword


def with_names(found: Sequence[Token]) -> tuple[list[str], int]:
    """Return (names that a WITH clause at the beginning defines, index of the token after the clause)."""
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
    """Return the index of the token after one definition of a WITH clause: `[(columns)] AS (query)`.

    place: the index of the token after the defined name.
    """
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
    """Return the index in the text of the first character after spaces and comments, from `begin` on."""
    found = _SPACE.match(text, begin)
    return begin if found is None else found.end()


def statement_end(text: str, begin: int = 0) -> int | None:
    """Return the index of the character after the `;` that ends a statement; None if no such `;` follows.

    begin: the index in the text at which the statement begins.
    """
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

    `at` compares the next tokens with keywords in upper case. `take` reads the keywords if they
    come next, and `need` raises an error if they do not. `until` reads the text up to a keyword.
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
        """The index in the text at which the next token begins; at the end, the length of the text."""
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
        """Read up to one of the keyword sequences, a closing bracket, or the end. Returns the text.

        A keyword inside brackets or CASE … END does not end the text. Nor does a name that looks like a
        keyword, such as `t.from`.
        """
        begin, end = self.here, self.here
        ends = _CLOSES.union(stop[0] for stop in stops)
        open_: list[str] = []  # the tokens that close the brackets and CASEs that are open
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
        """Read the remaining text, and return it."""
        begin = self.here
        self.index = len(self.tokens)
        return self.text[begin:].rstrip()

    def parenthesised(self) -> str:
        """Read `( … )`. Returns the text inside. Raises: InvalidArgumentError."""
        self.need("(")
        inside = self.until()
        self.need(")")
        return inside

    def listed(self, *stops: Sequence[str]) -> list[str]:
        """Read texts between commas, up to one of the keyword sequences, a closing bracket, or the end.

        As in DuckDB, a comma after the last text is ignored.
        """
        items = [self.until((",",), *stops)]
        while self.take(","):
            if self.ended or self.tokens[self.index].text in _CLOSES or self.at_any(*stops):
                break
            items.append(self.until((",",), *stops))
        return items

    def names(self) -> list[str]:
        """Read `(name, …)`. Raises: InvalidArgumentError."""
        self.need("(")
        names = [self.identifier()]
        while self.take(",") and not self.at(")"):
            names.append(self.identifier())
        self.need(")")
        return names

    def finish(self) -> None:
        """Check that all tokens were read. Raises: InvalidArgumentError."""
        if not self.ended:
            raise self.error("expected the end of the statement")

    def error(self, problem: str) -> InvalidArgumentError:
        """Return the error for the next token, with its line."""
        if self.ended:
            return InvalidArgumentError(f"{problem}, at the end of: {_shown(self.text)}")
        line = self.text.count("\n", 0, self.here) + 1
        return InvalidArgumentError(f"LINE {line}: {problem}, not {_shown(self.text[self.here :])}")


def _shown(text: str) -> str:
    text = " ".join(text.split())
    return repr(text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…")
