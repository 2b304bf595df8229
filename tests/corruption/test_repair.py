"""A repair after random damage: a store without problems has the right rows at every moment.

A wrong row after a repair that reports success would never be noticed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.corruption.seeded import Origin, contents, copy_store, make_origin, same
from tests.figures import counted
from tests.support import folder_in_memory, open_database

import nyala
from nyala.errors import Error


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    with folder_in_memory() as folder:
        yield make_origin(folder, tablets=1)


def damage(content: bytes, chance: random.Random) -> bytes:
    """Flip a bit, cut the end, set bytes to zero, or append bytes, by chance."""
    at = chance.randrange(len(content))
    how = chance.choice(["flip", "flip", "flip", "cut", "zero", "append"])
    if how == "cut":
        return content[:at]
    if how == "append":
        return content + bytes(chance.randrange(256) for _ in range(20))
    made = bytearray(content)
    if how == "zero":
        made[at : at + 64] = bytes(len(made[at : at + 64]))
    else:
        made[at] ^= 1 << chance.randrange(8)
    return bytes(made)


def repair_and_compare(origin: Origin, path: Path, name: str, damaged: bytes) -> str:
    """Damage a file and repair the store; return the result.

    Returns: "whole" if the damage was none, "repaired", "left" if the store still has problems, or
        "error" if the repair raised an error.
    """
    copy_store(origin.path, path)
    (path / name).write_bytes(damaged)
    was_ok = nyala.check(path).ok
    try:
        report = nyala.check(path, repair=True)
    except Error:
        return "error"
    assert report.ok or not was_ok, "the repair has damaged the store"
    try:
        with open_database(path) as db:
            read = contents(db, origin.moments)
    except Error:
        assert not report.ok, f"{name}: no problem is reported, and it cannot be read"
        return "left"
    assert same(read, origin.contents), f"{name}: other rows after {report.repairs}"
    assert nyala.check(path).ok == report.ok
    return "left" if not report.ok else "repaired" if report.repairs else "whole"


def try_damages(origin: Origin, chance: random.Random, count: int, tried: list[int]) -> Counter[str]:
    results: Counter[str] = Counter()
    names = [name for name, content in origin.files.items() if content]
    with folder_in_memory() as folder:
        for number in range(count):
            name = names[number % len(names)]
            damaged = damage(origin.files[name], chance)
            if damaged != origin.files[name]:
                results[repair_and_compare(origin, folder / "copy", name, damaged)] += 1
                tried.append(1)
    return results


def test_a_repaired_store_without_problems_has_the_right_rows(origin: Origin) -> None:
    results = try_damages(origin, random.Random(24), 12, [])
    assert results["left"] + results["error"] > 0, results


def test_repairable_damage_is_repaired(origin: Origin, tmp_path: Path) -> None:
    """Appended bytes, and a damaged position record. The random damages above may have no such case."""
    name = next(name for name in origin.files if name.endswith(".base"))
    behind = origin.files[name] + b"more"
    assert repair_and_compare(origin, tmp_path / "copy", name, behind) == "repaired"
    assert repair_and_compare(origin, tmp_path / "copy", "wal/position", b"no record") == "repaired"


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(4))
def test_a_repair_after_many_damages(origin: Origin, seed: int) -> None:
    with counted("damages by chance that a repair was tried on", "damages") as tried:
        results = try_damages(origin, random.Random(seed), 300, tried)
    assert results["repaired"] > 0 and results["left"] > 0, results
