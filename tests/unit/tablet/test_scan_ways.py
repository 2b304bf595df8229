"""Scans of rowsets with random combinations of base, parts and changes agree with a list of rows.

The rowsets also have dead rows, columns that were added later, rows that are read at a past moment,
and encodings that can or cannot evaluate predicates.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.support import folder_in_memory, open_database
from tests.unit.tablet.ways import (
    ADD,
    ADDED,
    CHANGE,
    DELETE,
    FLUSH,
    MAJOR,
    NAMES,
    ROWS,
    SOME,
    Row,
    Step,
    carry_out,
    create,
    question,
    row,
    small_splits,
    without,
)

import nyala

STEPS = st.lists(st.one_of(CHANGE, CHANGE, DELETE, FLUSH, MAJOR, ADD), min_size=1, max_size=8)


@pytest.mark.timeout(3600)
@settings(max_examples=settings().max_examples // 3, phases=set(Phase) - {Phase.explain})
@given(steps=STEPS, data=st.data())
def test_scans_of_any_combination_return_the_expected_rows(steps: list[Step], data: st.DataObject) -> None:
    with small_splits(), folder_in_memory() as folder:
        path = Path(folder) / "s"
        states: list[tuple[int, dict[int, Row]]] = []
        with open_database(path) as db:
            table = create(db)
            rows = {k: without(row(k, 0), "group", ADDED) for k in range(ROWS)}
            table.insert(list(rows.values()))
            table.flush()
            for number, step in enumerate(steps, 1):
                states.append((db.now(), dict(rows)))
                carry_out(db, step, number, rows)
            states.append((db.now(), dict(rows)))
        for _ in range(3):
            at, there = states[data.draw(st.sampled_from([-1, -1, -1, 0, len(states) // 2]))]
            known = ["k", *NAMES, *([ADDED] if any(ADDED in found for found in there.values()) else [])]
            names = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=4, unique=True))
            asked = [data.draw(question(name)) for name in data.draw(SOME) if name in known]
            word, holds = data.draw(st.sampled_from([(" AND ", all), (" AND ", all), (" OR ", any)]))
            where = word.join(text for text, _ in asked) if asked else None
            wanted = [
                {name: found[name] for name in names}
                for _, found in sorted(there.items())
                if not asked or holds(test(found) for _, test in asked)
            ]
            with nyala.connect(path, read_only=True) as db:
                for _ in range(data.draw(st.sampled_from([1, 1, 3]))):
                    scan = db["t"].scan(names, where, at=at, order_by_key=True)
                    assert scan.to_arrow().to_pylist() == wanted
                    assert scan._engine().with_cheap_types().scan.to_arrow().to_pylist() == wanted
                    assert db["t"].count(where, at=at) == len(wanted)
                statement = f"SELECT {', '.join(names)} FROM t WHERE {where or 'true'} ORDER BY k"
                assert db.sql(statement, at=at).to_arrow().to_pylist() == wanted
