"""Following the log from checkpoints, past seals and deleted slots."""

from __future__ import annotations

from typing import Any

import pytest

from nyala.env import MissingFileError
from nyala.errors import CorruptionError, StorageError
from nyala.wal.format import WrongStoreError
from nyala.wal.objects import follower as follower_module
from nyala.wal.objects.format import Kind, Record, Seal, Slot, encode_group, encode_seal

Bench = Any  # the class of conftest.py, which tests cannot import


def fill(bench: Bench, log: Any, first: int, last: int) -> None:
    bench.write(log, *(f"r{number}" for number in range(first, last + 1)))


def test_a_reader_gets_each_record_once(bench: Bench) -> None:
    """Each call returns the new records."""
    log = bench.log()
    follower = bench.follower()
    news = follower.read_new()
    assert news.restarted and news.checkpoint is None and news.entries == []
    for name in ("a", "b"):
        bench.write(log, name)
        news = follower.read_new()
        assert bench.names_of(news.entries) == [name] and not news.restarted
    assert follower.read_new().entries == []
    assert follower.timestamp == 2 and follower.position == Slot(log._start.epoch, 2)


def test_a_reader_follows_from_writer_to_writer(bench: Bench) -> None:
    """A reader gets the records of all writers, also past epochs without a record."""
    follower = None
    for index in range(4):
        log = bench.log()
        if follower is None:
            follower = bench.follower()
        if index != 2:
            bench.write(log, f"r{index}")
        news = follower.read_new()
        assert bench.names_of(news.entries) == ([] if index == 2 else [f"r{index}"])
        assert news.restarted == (index == 0)


def test_a_reader_begins_at_the_newest_checkpoint(bench: Bench) -> None:
    """The reader gets the state of the checkpoint, batches from its log start on, and all later records."""
    log = bench.log()
    bench.write(log, "old batch")
    bench.write(log, "kept batch")
    bench.write(log, "change in the checkpoint", kind=Kind.CHANGE)
    bench.checkpoint(log, b"state", keep=2)
    bench.write(log, "new batch")
    bench.write(log, "new change", kind=Kind.CHANGE)
    news = bench.follower().read_new()
    assert news.restarted and news.checkpoint.body.to_pybytes() == b"state"
    assert bench.names_of(news.entries) == ["kept batch", "new batch", "new change"]


def test_a_reader_that_keeps_up_does_not_begin_again(bench: Bench) -> None:
    """A checkpoint deletes only slots that the reader has read."""
    log = bench.log()
    follower = bench.follower()
    seen: list[str] = []
    for round_ in range(5):
        fill(bench, log, round_ * 3, round_ * 3 + 2)
        bench.checkpoint(log)
        news = follower.read_new()
        assert news.restarted == (round_ == 0)
        seen += bench.names_of(news.entries)
    assert seen == [f"r{number}" for number in range(3, 15)], "the first three are in the checkpoint"
    bench.log()
    assert not follower.read_new().restarted, "slot 0 of the next epoch is the end"


def test_s2_a_stalled_reader_begins_again_when_its_slot_was_deleted(bench: Bench) -> None:
    """An empty slot may be a deleted one. Then the reader begins again at a checkpoint."""
    log = bench.log()
    follower = bench.follower()
    follower.read_new()
    for round_ in range(2):
        fill(bench, log, round_ * 2, round_ * 2 + 1)
        bench.checkpoint(log, b"state %d" % round_)
    fill(bench, log, 4, 5)
    assert bench.bucket.get(follower.position.key) is None
    news = follower.read_new()
    assert news.restarted and news.checkpoint.body.to_pybytes() == b"state 1"
    assert bench.names_of(news.entries) == ["r4", "r5"]


def test_s2_a_late_seal_in_a_deleted_slot_does_not_count(bench: Bench) -> None:
    """A seal that arrives late, after its process gave up, in a slot that was deleted is ignored."""
    log = bench.log()
    follower = bench.follower()
    follower.read_new()
    slot = follower.position
    for round_ in range(2):
        fill(bench, log, round_ * 2, round_ * 2 + 1)
        bench.checkpoint(log)
    fill(bench, log, 4, 5)
    seal = Seal(slot.epoch.next("a" * 16), "host", 1, 1)
    stray, _ = encode_seal(log.store_id, slot, follower.previous_crc, seal)
    assert bench.bucket.create(slot.key, stray)
    news = follower.read_new()
    assert news.restarted and bench.names_of(news.entries) == ["r4", "r5"]


def test_groups_after_a_seal_are_not_part_of_the_log(bench: Bench) -> None:
    """Groups after a seal were never acknowledged, so a reader ignores them."""
    old = bench.log()
    bench.write(old, "a")
    slot = Slot(old._start.epoch, 2)
    body, _ = encode_group(old.store_id, slot, 0, [Record.of(Kind.BATCH, 9, [b"behind"])])
    bench.bucket.create(slot.key, body)
    new = bench.log()
    bench.write(new, "b")
    assert bench.names() == ["a", "b"]


@pytest.mark.parametrize("count", [1, 5, 100])
def test_many_slots_are_read_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Slots are read at the same time, and their records are returned in the order of the log."""
    log = bench.log()
    fill(bench, log, 1, count)
    rounds: list[int] = []
    plain = follower_module.each

    def each(files: Any, work: Any, items: Any, threads: int) -> Any:
        rounds.append(len(items))
        return plain(files, work, items, threads)

    monkeypatch.setattr(follower_module, "each", each)
    assert bench.names() == [f"r{number}" for number in range(1, count + 1)]
    assert max(rounds) <= 32 and len(rounds) <= 5 + count / 20


def test_a_gap_before_a_later_group_is_the_end(bench: Bench) -> None:
    """A reader stops at an empty slot. It reads the later group when the slot is written."""
    log = bench.log()
    fill(bench, log, 1, 6)
    key = Slot(log._start.epoch, 3).key
    missing = bench.bucket.get(key)
    bench.bucket.delete([key])
    follower = bench.follower()
    assert bench.names_of(follower.read_new().entries) == ["r1", "r2", "r3"]
    bench.bucket.create(key, missing)
    assert bench.names_of(follower.read_new().entries) == ["r4", "r5", "r6"]


def test_reading_beside_a_busy_writer_ends(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two records are added during each read. They may be left for the next call."""
    log = bench.log()
    fill(bench, log, 1, 3)
    written = [3]
    plain = follower_module.each

    def each(*args: Any) -> Any:
        if written[0] < 500:
            fill(bench, log, written[0] + 1, written[0] + 2)
            written[0] += 2
        return plain(*args)

    monkeypatch.setattr(follower_module, "each", each)
    follower = bench.follower()
    names = bench.names_of(follower.read_new().entries)
    assert names[:3] == ["r1", "r2", "r3"] and len(names) < 30
    more = bench.names_of(follower.read_new().entries)
    assert [*names, *more] == [f"r{number}" for number in range(1, len(names) + len(more) + 1)]


def test_f4_a_damaged_checkpoint_is_skipped(bench: Bench) -> None:
    """A reader uses the checkpoint before the damaged one, and reads more of the log."""
    log = bench.log()
    for round_ in range(3):
        fill(bench, log, round_ * 2, round_ * 2 + 1)
        bench.checkpoint(log, b"state %d" % round_)
    fill(bench, log, 6, 7)
    newest = bench.keys("ckpt/")[-1]
    bench.damage(newest)
    news = bench.follower().read_new()
    assert news.checkpoint.body.to_pybytes() == b"state 1"
    assert bench.names_of(news.entries) == ["r4", "r5", "r6", "r7"]
    taken = bench.take_over()
    bench.write(taken.log, "r8")
    bench.checkpoint(taken.log, b"state 3")
    bench.damage(bench.keys("ckpt/")[-1])
    news = bench.follower().read_new()
    assert news.checkpoint.body.to_pybytes() == b"state 1", (
        "the new writer kept the checkpoint that it could read"
    )
    assert bench.names_of(news.entries) == ["r4", "r5", "r6", "r7", "r8"]


def test_f4_the_first_checkpoint_may_be_damaged(bench: Bench) -> None:
    """If the first checkpoint is damaged, the whole log is read, because nothing was deleted yet."""
    log = bench.log()
    fill(bench, log, 1, 2)
    bench.checkpoint(log)
    fill(bench, log, 3, 4)
    bench.damage(bench.keys("ckpt/")[0], 0)
    news = bench.follower().read_new()
    assert news.checkpoint is None and bench.names_of(news.entries) == ["r1", "r2", "r3", "r4"]


def test_two_damaged_checkpoints_are_damage(bench: Bench) -> None:
    """The error names the missing object."""
    log = bench.log()
    for round_ in range(3):
        fill(bench, log, round_ * 2, round_ * 2 + 1)
        bench.checkpoint(log)
    for key in bench.keys("ckpt/"):
        bench.damage(key)
    for read in (bench.follower().read_new, bench.take_over):
        with pytest.raises(CorruptionError, match="newest checkpoint is damaged too"):
            read()


@pytest.mark.parametrize("which", ["in the checkpoint's tail", "seal", "all"])
def test_f3_missing_objects_are_damage(bench: Bench, which: str) -> None:
    """Another program deleted objects of the log."""
    bench.write(bench.log(), "a")
    log = bench.log()
    fill(bench, log, 1, 4)
    bench.checkpoint(log, keep=1 if which == "seal" else 3)
    fill(bench, log, 5, 6)
    seal = next(key for key in bench.keys("log/") if "/0000000001-" in key and key.endswith("1"))
    keys = {"seal": [seal], "all": bench.keys("log/")}.get(which, [Slot(log._start.epoch, 3).key])
    bench.bucket.delete(keys)
    with pytest.raises(CorruptionError, match="no rule of the bucket may delete"):
        bench.follower().read_new()
    with pytest.raises(CorruptionError, match="no rule of the bucket may delete"):
        bench.take_over()


def test_f2_a_group_of_another_history_is_damage(bench: Bench) -> None:
    """A group of another history, for example from an old copy of the bucket, is damage."""
    log = bench.log()
    fill(bench, log, 1, 2)
    slot = Slot(log._start.epoch, 2)
    body, _ = encode_group(log.store_id, slot, 12345, [Record.of(Kind.BATCH, 9, [b"x"])])
    bench.bucket.create(slot.key, body)
    with pytest.raises(CorruptionError, match="an object of the log is missing or was replaced"):
        bench.follower().read_new()


def test_f2_a_checkpoint_of_another_history_is_damage(bench: Bench) -> None:
    """CRCs are compared at the slot of the checkpoint."""
    log = bench.log()
    fill(bench, log, 1, 3)
    bench.checkpoint(log, keep=1)
    slot = Slot(log._start.epoch, 2)
    previous = bench.follower()
    previous.read_new()
    crc = previous.live_slots()[1].crc
    body, _ = encode_group(log.store_id, slot, crc, [Record.of(Kind.BATCH, 3, [b"other"])])
    bench.bucket.put(slot.key, body)
    with pytest.raises(CorruptionError, match="is not the one that the checkpoint"):
        bench.follower().read_new()


def test_f2_a_seal_that_leads_past_the_checkpoint_is_damage(bench: Bench) -> None:
    """The seal is from another history than the checkpoint."""
    old = bench.log()
    fill(bench, old, 1, 2)
    heir = bench.log()
    bench.checkpoint(heir, keep=1)
    slot = Slot(old._start.epoch, 2)
    follower = bench.follower()
    follower.read_new()
    previous_crc = follower.live_slots()[1].crc
    seal = Seal(slot.epoch.next("a" * 16), "host", 1, 1)
    bench.bucket.put(slot.key, encode_seal(heir.store_id, slot, previous_crc, seal)[0])
    with pytest.raises(CorruptionError, match="although a checkpoint follows it"):
        bench.follower().read_new()


def test_damage_in_a_group_names_the_object(bench: Bench) -> None:
    """The path is the object's URL."""
    log = bench.log()
    fill(bench, log, 1, 3)
    key = Slot(log._start.epoch, 1).key
    bench.damage(key)
    with pytest.raises(CorruptionError, match="checksum") as caught:
        bench.follower().read_new()
    assert caught.value.path == f"memory://bucket/{key}"


def test_objects_of_another_store_are_refused(bench: Bench) -> None:
    """Groups and checkpoints of another store are refused."""
    other = type(bench)()
    other.randomness.token_hex(3)
    log, theirs = bench.log(), other.log()
    assert log.store_id != theirs.store_id
    for each, mine in ((bench, log), (other, theirs)):
        each.write(mine, "a")
        each.checkpoint(mine)
    bench.bucket.put(bench.keys("ckpt/")[0], other.bucket.get(other.keys("ckpt/")[0]))
    with pytest.raises(WrongStoreError):
        bench.follower().read_new()


def test_a_checkpoint_that_is_deleted_while_it_is_read_is_replaced_by_a_newer_one(bench: Bench) -> None:
    """The reader lists the checkpoints again, and reads the newer one."""
    log = bench.log()
    fill(bench, log, 1, 2)
    bench.checkpoint(log, b"state 1")

    class Slow(bench.Wrapper):  # type: ignore[misc,name-defined]
        done = False

        def get(self, key: str) -> bytes | None:
            if key.startswith("ckpt/") and not self.done:
                self.done = True
                for round_ in (2, 3):
                    fill(bench, log, round_ * 2 - 1, round_ * 2)
                    bench.checkpoint(log, b"state %d" % round_)
            found = self.inner.get(key)
            return found if found is None else bytes(found)

    news = bench.follower(Slow(bench.bucket.client())).read_new()
    assert news.checkpoint.body.to_pybytes() == b"state 3" and news.entries == []


def test_a_bucket_that_lists_missing_objects_raises_an_error(bench: Bench) -> None:
    """There is an error, and no endless loop."""
    log = bench.log()
    bench.write(log, "a")
    bench.checkpoint(log)

    class Ghost(bench.Wrapper):  # type: ignore[misc,name-defined]
        def get(self, key: str) -> bytes | None:
            return None if key.startswith("ckpt/") else self.inner.get(key)

    with pytest.raises(MissingFileError, match="was listed, but does not exist"):
        bench.follower(Ghost(bench.bucket)).read_new()


def test_reads_are_repeated_while_the_bucket_does_not_answer(bench: Bench) -> None:
    """After a minute they raise an error."""
    log = bench.log()
    fill(bench, log, 1, 3)
    objects = bench.faulty()
    follower = bench.follower(objects)
    faults = iter(["503", None, "drop after", "drop before"])
    objects.faults = lambda request: next(faults, None)
    assert bench.names_of(follower.read_new().entries) == ["r1", "r2", "r3"]
    objects.faults = lambda request: "503"
    with pytest.raises(StorageError) as caught:
        follower.read_new()
    assert caught.value.outcome == "unknown"
    objects.faults = None
    fill(bench, log, 4, 4)
    assert bench.names_of(follower.read_new().entries) == ["r4"]
