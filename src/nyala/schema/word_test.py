"""What a predicate demands of one column of text, told word by word where the column lies in a dictionary.

    kind <> 'x' AND name LIKE '%AIR' AND (mode = 'a' OR mode LIKE 'b%') AND n > 3
        kind   its word is not 'x'          name   its word ends so          mode   its word is one of such
        n      no text: see `constraint`

A `Constraint` is a range or a list, and skips what zones say; a word test says exactly what its parts say, but of words
only. Each word of a dictionary is asked once, and rows by their codewords.

Invariants
    W1  A row satisfies all parts exactly if its value is not NULL and its word is admitted: no part holds for NULL.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.schema.constraint import Constraint, Nullness
from nyala.schema.evaluate import Bound, BoundAnd, BoundCompare, BoundIn, BoundLike, BoundOr

__all__ = ["Demanded", "WordTest", "is_its_constraint", "is_of_words", "word_tests"]


@dataclass(frozen=True, eq=False)
class WordTest:
    """All that a predicate says of one column of text or binary and of no other (W1). Compared by identity."""

    name: str
    parts: tuple[Bound, ...]

    null: ClassVar[Nullness] = "none"
    empty: ClassVar[bool] = False

    def admitted(self, words: pa.Array) -> npt.NDArray[np.bool_]:
        """Of each word, none of which is NULL, whether it satisfies all parts. Cost: one or two of Arrow's calls for
        each comparison."""
        mask = np.ones(len(words), np.bool_)
        for part in self.parts:
            mask &= part.mask({self.name: words}, len(words))
        return mask


Demanded: TypeAlias = Constraint | WordTest
"""What rows as they lie are asked."""


def word_tests(parts: Iterable[Bound]) -> dict[str, WordTest]:
    """By column, of the terms of an AND. Columns of which a range or a list says all are left out."""
    of_words: dict[str, list[Bound]] = {}
    for part in parts:
        if is_of_words(part):
            (name,) = part.columns
            of_words.setdefault(name, []).append(part)
    return {
        name: WordTest(name, tuple(found))
        for name, found in of_words.items()
        if not all(is_its_constraint(part) for part in found)
    }


def is_its_constraint(part: Bound) -> bool:
    """Whether a row satisfies it exactly when its column satisfies its constraint: a range or a list of values."""
    return (isinstance(part, BoundCompare) and part.op != "<>" and not part.column.type.is_floating) or (
        isinstance(part, BoundIn) and not part.negated and not part.column.type.is_floating
    )


def is_of_words(part: Bound) -> bool:
    """Whether it is of one column of text or binary, and holds for no NULL."""
    if isinstance(part, BoundAnd | BoundOr):
        return len(part.columns) == 1 and all(map(is_of_words, part.parts))
    return isinstance(part, BoundCompare | BoundIn | BoundLike) and part.column.type.is_variable
