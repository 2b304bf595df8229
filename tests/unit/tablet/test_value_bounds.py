"""Bounds of a scan's whole numbers: every value that it gives lies within, whatever moment it shows."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import open_database

from nyala.tablet import value_bounds

numbers = st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 200)
cents = st.integers(-(10**15) + 1, 10**15 - 1).map(lambda n: Decimal(n).scaleb(-2))
row = st.fixed_dictionaries({"k": st.integers(-5, 5), "n": st.none() | numbers, "d": st.none() | cents})
step = st.one_of(
    st.tuples(st.just("upsert"), st.lists(row, min_size=1, max_size=4, unique_by=lambda r: r["k"])),
    st.tuples(st.sampled_from(["flush", "compact", "delete", "default"]), st.integers(-300, 300)),
)


def least_and_greatest(rows: pa.Table) -> dict[str, tuple[int, int]]:
    """Of each column that has values, decimals without their point."""
    found = {}
    for name in rows.column_names:
        both = pc.min_max(rows.column(name)).as_py()
        if both["min"] is not None:
            scale = getattr(rows.schema.field(name).type, "scale", 0)
            least, greatest = (int(Decimal(both[which]).scaleb(scale)) for which in ("min", "max"))
            found[name] = least, greatest
    return found


@given(steps=st.lists(step, max_size=12), compacted=st.booleans())
def test_every_value_lies_within(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, Any]], compacted: bool
) -> None:
    """Now and at every moment: values in base files, UNDO and REDO, memory, and defaults of columns added later."""
    with open_database(tmp_path_factory.mktemp("bounds") / "s") as db:
        table = db.create_table("t", {"k": "int64", "n": "int64", "d": "decimal(15,2)"}, "k")
        moments = [db.now()]
        for number, (what, given) in enumerate(steps):
            if what == "upsert":
                moments.append(table.upsert(given).timestamp)
            elif what == "delete":
                moments.append(table.delete({"k": [given % 11 - 5]}, on_missing="ignore").timestamp)
            elif what == "default":
                with table.alter() as change:
                    change.add_column(f"c{number}", "int32", nullable=False, default=given)
                moments.append(db.now())
            else:
                getattr(table, what)()
        for at in (*moments, db.now()):
            scan = table.scan(at=at)
            bounds = (scan.compacted() if compacted else scan)._value_bounds()
            for name, (least, greatest) in least_and_greatest(scan.to_arrow()).items():
                assert bounds[name][0] <= least and greatest <= bounds[name][1], (name, at)


def test_they_are_no_wider_than_files_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As zone maps have them; a moment before an update does not see its values, and one after it both."""
    with open_database(tmp_path / "s") as db:
        columns = {"k": "int64", "d": "decimal(9,2)", "wide": "decimal(19,2)", "s": "string", "x": "double"}
        table = db.create_table("t", columns, "k")
        rows = [{"k": k, "d": Decimal(k).scaleb(-2), "wide": 1, "s": "", "x": 1.0} for k in (3, 7)]
        first = table.insert(rows).timestamp
        assert table.scan()._value_bounds() == {"k": (3, 7), "d": (3, 7)}
        table.flush()
        assert table.scan()._value_bounds() == {"k": (3, 7), "d": (3, 7)}
        second = table.update({"k": [3], "d": [Decimal("-1.00")]}).timestamp
        table.flush()
        table.insert({"k": [40], "d": [None], "wide": [1], "s": [""], "x": [1.0]})
        assert table.scan(["d"], at=first)._value_bounds() == {"d": (3, 7)}
        assert table.scan(["d"], at=second)._value_bounds() == {"d": (-100, 7)}
        assert table.scan(["k"])._value_bounds() == {"k": (3, 40)}
        assert table.scan(["k"], where="k > 10")._value_bounds() == {"k": (40, 40)}
        assert table.scan(["s", "x"])._value_bounds() == {}
        monkeypatch.setattr(value_bounds, "ROWSETS_MAX", 0)
        assert table.scan(["k"])._value_bounds() == {}
