"""The protocol of the log in a bucket, in all interleavings of its requests.

The model has the steps of `nyala.wal.objects`: every GET, LIST, PUT and DELETE is a step by itself,
and any process may take the next one. A reply may be lost, a request may be carried out later, and
one checkpoint may become damaged. The search visits every state that can follow, and checks in each:

    M1  An open finds every acknowledged record, and none twice.
    M2  An heir (a process that takes over from a writer) finds every record before its epoch. A
        reader finds all records that were acknowledged before it began. No record that they have
        read disappears.
    M3  No process finds that an object is missing.

Each rule is left out in turn, and then the search must find a violation. `S1` to `S5` are the rules
of docs/design/object-storage.md, "The log".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

Epoch = tuple[int, str]
Slot = tuple[Epoch, int]
# ("record", name), ("note", checkpoint) or ("seal", the next epoch)
Content = tuple[str, Any]

FIRST: Epoch = (1, "A")


class Checkpoint(NamedTuple):
    """The state before `position`. Records in slots before `log_start` are in files."""

    place: tuple[int, int]
    by: str
    position: Slot
    log_start: Slot
    files: tuple[str, ...]
    damaged: bool = False


class Process(NamedTuple):
    """A writer, heir or reader: its position in the protocol, and what it knows."""

    name: str
    at: str
    slot: Slot
    log: tuple[tuple[Slot, str], ...] = ()
    """Each record that the process has read, with its slot. A record in files may have any slot."""
    # budgets: how often each event may still happen to it
    records: int = 0
    checkpoints: int = 0
    late: int = 0
    lost: int = 0
    walls: int = 0
    tries: int = 0
    # what it is about to do
    pending: Content | None = None
    listed: tuple[Checkpoint, ...] = ()
    gone: tuple[Any, ...] = ()
    # what it knows
    noted: Checkpoint | None = None
    known: tuple[Any, ...] | None = None
    at_start: tuple[Any, ...] | None = None
    began: frozenset[str] | None = None
    """The records that were acknowledged when the process began to read."""


class State(NamedTuple):
    slots: frozenset[tuple[Slot, Content]]
    checkpoints: frozenset[Checkpoint]
    late: frozenset[Any]
    processes: tuple[Process, ...]
    acknowledged: frozenset[str]
    damages: int


def key_of(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return (checkpoint.place, checkpoint.by)


def place_of(slot: Slot) -> tuple[int, int]:
    return slot[0][0], slot[1]


def after(slot: Slot) -> Slot:
    return slot[0], slot[1] + 1


class Missing(Exception):
    """Objects of the log are missing."""


@dataclass(frozen=True)
class Protocol:
    """The protocol with a set of rules; a mutant lacks one of them."""

    s1: bool = True
    s2: bool = True
    s2_first: bool = True
    s3_note: bool = True
    s3_start: bool = True
    s4: bool = True
    s5: bool = True
    s6: bool = True
    put_if_absent: bool = True
    max_tries: int = 2

    def opened(self, state: State) -> tuple[tuple[str, ...], dict[Epoch, int]]:
        """Return the records that an open finds now, if nothing else happens, and how many of them
        are before each epoch that it passes. Raises: Missing.
        """
        slots = dict(state.slots)
        listed = sorted(state.checkpoints, key=key_of)
        base = next((found for found in reversed(listed) if not found.damaged), None)
        slot: Slot = (FIRST, 0) if base is None else base.log_start
        log = () if base is None else base.files
        before: dict[Epoch, int] = {}
        while (content := slots.get(slot)) is not None:
            if content[0] == "seal":
                slot = (content[1], 0)
                before[slot[0]] = len(log)
                continue
            if content[0] == "record":
                log += (content[1],)
            slot = after(slot)
        if listed and listed[-1].place > place_of(slot):
            raise Missing(f"the log ends at {slot}, before {listed[-1]}")
        return log, before

    def problem(self, state: State) -> str | None:
        """Return what is wrong in a state."""
        try:
            opened, before = self.opened(state)
        except Missing as error:
            return str(error)
        acknowledged = state.acknowledged
        if len(set(opened)) < len(opened) or not acknowledged <= set(opened):
            return f"{sorted(acknowledged)} were acknowledged, but an open finds {opened}"
        for process in state.processes:
            log = tuple(name for _, name in process.log)
            if process.at == "missing":
                return f"{process.name} finds that objects are missing at {process.slot}"
            if process.at in ("done", "took over") and opened[: len(log)] != log:
                return f"{process.name} has {log}, but an open finds {opened}"
            if process.at == "done" and process.began is not None and not process.began <= set(log):
                return f"{process.name} has {log}, but {sorted(process.began)} were acknowledged"
            epoch = process.slot[0]
            if process.at == "took over" and before.get(epoch, len(log)) != len(log):
                return f"{process.name} has {log}, but {opened[: before[epoch]]} are before its epoch"
        return None

    # ── steps

    def steps(self, state: State) -> Iterator[State]:
        """Yield every state that may come next."""
        for request in state.late:
            left = state.late - {request}
            if isinstance(request, Checkpoint):
                yield state._replace(checkpoints=state.checkpoints | {request}, late=left)
            elif any(slot == request[0] for slot, _ in state.slots) and self.put_if_absent:
                yield state._replace(late=left)
            else:
                yield self._with(state, *request)._replace(late=left)
        if state.damages and state.checkpoints:
            newest = max(state.checkpoints, key=key_of)
            others = state.checkpoints - {newest}
            damaged = newest._replace(damaged=True)
            yield state._replace(checkpoints=others | {damaged}, damages=state.damages - 1)
        for index, process in enumerate(state.processes):
            step = getattr(self, "_" + process.at.replace(" ", "_"), None)
            if step is not None:
                yield from step(state, index, process)

    def _with(self, state: State, slot: Slot, content: Content) -> State:
        slots = frozenset(pair for pair in state.slots if pair[0] != slot)
        return state._replace(slots=slots | {(slot, content)})

    def _set(self, state: State, index: int, process: Process) -> State:
        processes = state.processes
        return state._replace(processes=(*processes[:index], process, *processes[index + 1 :]))

    def _create(self, state: State, index: int, process: Process, done: str, refused: str) -> Iterator[State]:
        """Create `process.slot` by put-if-absent: it succeeds, is refused, or gets no answer."""
        slot, content = process.slot, process.pending
        assert content is not None
        if self.put_if_absent and any(pair[0] == slot for pair in state.slots):
            yield self._set(state, index, process._replace(at=refused))
        else:
            stored = self._with(state, slot, content)
            yield from self._finish(stored, index, process, done)
            if process.lost:
                yield self._set(stored, index, process._replace(lost=process.lost - 1))
        if process.late:
            later = self._set(state, index, process._replace(late=process.late - 1))
            yield later._replace(late=later.late | {(slot, content)})

    def _compare(self, state: State, index: int, process: Process, tries: str, done: str) -> State | None:
        """Read the slot after a refusal; return None if somebody else's object is there."""
        found = dict(state.slots).get(process.slot)
        if found is None:
            return self._set(state, index, process._replace(at=tries))
        if found == process.pending:
            return next(iter(self._finish(state, index, process, done)))
        return None

    def _finish(self, state: State, index: int, process: Process, done: str) -> Iterator[State]:
        """Go on after the slot was created."""
        content = process.pending
        assert content is not None
        if content[0] == "seal":
            yield self._set(state, index, process._replace(at=done))
            return
        if content[0] == "record":
            log = (*process.log, (process.slot, content[1]))
            state = state._replace(acknowledged=state.acknowledged | {content[1]})
            process = process._replace(log=log)
        moved = process._replace(at=done, slot=after(process.slot), pending=None)
        if content[0] == "note":
            moved = self._sweep(state, moved, content[1])
        yield self._set(state, index, moved)

    # ── the writer

    def _own(self, state: State, index: int, process: Process) -> Iterator[State]:
        if process.gone:
            yield self._delete(state, index, process)
            return
        if process.records:
            record = ("record", f"{process.name}{process.records}")
            moved = process._replace(at="append", pending=record, records=process.records - 1)
            yield self._set(state, index, moved)
        if process.checkpoints:
            for log_start in self._log_starts(process):
                files = tuple(name for slot, name in process.log if place_of(slot) < place_of(log_start))
                by = f"{9 - process.checkpoints}{process.name}"
                made = Checkpoint(place_of(process.slot), by, process.slot, log_start, files)
                moved = process._replace(
                    at="append", pending=("note", made), checkpoints=process.checkpoints - 1
                )
                if not self.s3_note:
                    moved = self._sweep(state, moved._replace(at="own", pending=None), made)
                written = state._replace(checkpoints=state.checkpoints | {made})
                yield self._set(written, index, moved)
                if process.late:  # no answer: it goes on without this checkpoint, which may appear later
                    lost = process._replace(checkpoints=process.checkpoints - 1, late=process.late - 1)
                    later = self._set(state, index, lost)
                    yield later._replace(late=later.late | {made})

    _took_over = _own

    def _log_starts(self, process: Process) -> list[Slot]:
        """Return the possible log starts of a checkpoint: the earliest that is allowed, and the end."""
        earliest: Slot = (FIRST, 0)
        if process.noted is not None and self.s3_start:
            earliest = process.noted.log_start
        elif process.log:
            earliest = process.log[0][0]
        return sorted({earliest, process.slot}, key=place_of)

    def _sweep(self, state: State, process: Process, made: Checkpoint) -> Process:
        """List the objects that the new checkpoint replaces."""
        before = process.noted if self.s5 else made
        gone: tuple[Any, ...] = ()
        if before is not None:
            floor = place_of(before.log_start)
            gone = tuple(sorted(slot for slot, _ in state.slots if place_of(slot) < floor))
            others = (key for found in state.checkpoints if (key := key_of(found)) != key_of(before))
            gone += tuple(sorted(key for key in others if key < key_of(made)))
        return process._replace(noted=made, gone=gone)

    def _delete(self, state: State, index: int, process: Process) -> State:
        first, left = process.gone[0], process._replace(gone=process.gone[1:])
        if isinstance(first[1], str):  # the key of a checkpoint
            kept = frozenset(found for found in state.checkpoints if key_of(found) != first)
            return self._set(state, index, left)._replace(checkpoints=kept)
        slots = frozenset(
            (slot, content)
            for slot, content in state.slots
            if slot != first or (content[0] == "seal" and self.s4)
        )
        return self._set(state, index, left)._replace(slots=slots)

    def _append(self, state: State, index: int, process: Process) -> Iterator[State]:
        yield from self._create(state, index, process, "own", "append refused")

    def _append_refused(self, state: State, index: int, process: Process) -> Iterator[State]:
        same = self._compare(state, index, process, "append", "own")
        yield same or self._set(state, index, process._replace(at="fenced", pending=None))

    def _fenced(self, state: State, index: int, process: Process) -> Iterator[State]:
        if process.gone:  # deletions that were under way go on
            yield self._delete(state, index, process)

    # ── followers

    def _start(self, state: State, index: int, process: Process) -> Iterator[State]:
        listed = tuple(sorted(state.checkpoints, key=key_of))
        newest = key_of(listed[-1]) if listed else None
        began = state.acknowledged if process.began is None else process.began
        moved = process._replace(
            at="load", listed=listed, known=newest, at_start=newest, noted=None, log=(), began=began
        )
        yield self._set(state, index, moved)

    def _load(self, state: State, index: int, process: Process) -> Iterator[State]:
        if not process.listed:
            yield self._set(state, index, process._replace(at="read", slot=(FIRST, 0)))
            return
        key = key_of(process.listed[-1])
        found = next((found for found in state.checkpoints if key_of(found) == key), None)
        if found is None:
            yield self._set(state, index, process._replace(at="start"))
        elif found.damaged:
            yield self._set(state, index, process._replace(listed=process.listed[:-1]))
        else:
            log = tuple((found.log_start, name) for name in found.files)
            # Rows in files are before the log's start, wherever they were once written.
            log = tuple(((slot[0], -1), name) for slot, name in log)
            moved = process._replace(at="read", listed=(), slot=found.log_start, log=log, noted=found)
            yield self._set(state, index, moved)

    def _read(self, state: State, index: int, process: Process) -> Iterator[State]:
        found = dict(state.slots).get(process.slot)
        if found is None:
            yield self._set(state, index, process._replace(at="empty"))
        elif found[0] == "seal":
            yield self._set(state, index, process._replace(slot=(found[1], 0)))
        elif found[0] == "record":
            log = (*process.log, (process.slot, found[1]))
            yield self._set(state, index, process._replace(slot=after(process.slot), log=log))
        else:
            made = found[1]
            moved = process._replace(slot=after(process.slot))
            if moved.noted is None or key_of(made) > key_of(moved.noted):
                moved = moved._replace(noted=made)
            if moved.known is None or key_of(made) > moved.known:
                moved = moved._replace(known=key_of(made))
            yield self._set(state, index, moved)

    def _verdict(self, state: State, process: Process) -> str:
        """Return why a slot is empty: "start" (it was deleted), "missing", or "end"."""
        slot = process.slot
        newest = max(map(key_of, state.checkpoints), default=None)
        if newest is not None and newest[0] > place_of(slot):
            return "missing" if newest == process.at_start else "start"
        if (
            newest is not None
            and slot[1] == 0
            and self.s2_first
            and (process.known is None or newest > process.known)
        ):
            return "start"
        return "end"

    def _empty(self, state: State, index: int, process: Process) -> Iterator[State]:
        verdict = self._verdict(state, process) if self.s2 else "end"
        if verdict != "end":
            yield self._set(state, index, process._replace(at=verdict))
        elif process.name.startswith("reader"):
            yield self._set(state, index, process._replace(at="done"))
        else:
            token = f"{process.name}{process.tries if self.s6 else ''}"
            epoch = (process.slot[0][0] + 1, token)
            moved = process._replace(at="seal", pending=("seal", epoch), tries=process.tries + 1)
            yield self._set(state, index, moved)

    def _seal(self, state: State, index: int, process: Process) -> Iterator[State]:
        yield from self._create(state, index, process, "verify", "seal refused")

    def _seal_refused(self, state: State, index: int, process: Process) -> Iterator[State]:
        same = self._compare(state, index, process, "seal", "verify")
        if same is not None:
            yield same
        elif process.tries < self.max_tries:
            moved = process._replace(at="read", pending=None)
            yield self._set(state, index, moved)
            if process.walls:
                yield self._set(state, index, moved._replace(at="wall", walls=process.walls - 1))

    def _wall(self, state: State, index: int, process: Process) -> Iterator[State]:
        """Create a seal beyond the next slot, if nothing is there; now, or later."""
        epoch, n = process.slot
        slot, content = (epoch, n + 2), ("seal", (epoch[0] + 1, f"{process.name}wall"))
        moved = self._set(state, index, process._replace(at="read"))
        yield moved._replace(late=state.late | {(slot, content)})
        yield moved if any(pair[0] == slot for pair in state.slots) else self._with(moved, slot, content)

    def _verify(self, state: State, index: int, process: Process) -> Iterator[State]:
        verdict = self._verdict(state, process) if self.s1 else "end"
        if verdict == "end":
            assert process.pending is not None
            moved = process._replace(at="took over", slot=(process.pending[1], 0), pending=None)
            yield self._set(state, index, moved)
        elif process.tries < self.max_tries:
            yield self._set(state, index, process._replace(at=verdict, pending=None))


def search(protocol: Protocol, processes: tuple[Process, ...], damages: int = 0) -> tuple[str | None, int]:
    """Visit every state, depth first; return a problem with its steps if one is found, and the
    number of states.
    """
    first = State(frozenset(), frozenset(), frozenset(), processes, frozenset(), damages)
    came_from: dict[State, State | None] = {first: None}
    waiting = [first]
    while waiting:
        state = waiting.pop()
        problem = protocol.problem(state)
        if problem is not None:
            depth, before = 0, came_from[state]
            while before is not None:
                depth, before = depth + 1, came_from[before]
            return f"{problem} (after {depth} steps)", len(came_from)
        for successor in protocol.steps(state):
            if successor not in came_from:
                came_from[successor] = state
                waiting.append(successor)
    return None, len(came_from)


def writer(**budgets: int) -> Process:
    return Process("A", "own", (FIRST, 0), **budgets)


def heir(name: str = "B", **budgets: int) -> Process:
    return Process(name, "start", (FIRST, 0), **budgets)


def reader() -> Process:
    return Process("reader", "start", (FIRST, 0))


# ── tests

# Small enough for each run of the tests.
SCENARIOS = {
    "writer and heir": (writer(records=1, checkpoints=2), heir(records=1)),
    "writer and reader": (writer(records=1, checkpoints=2, late=1, lost=1), reader()),
    "heir deletes": (writer(records=1, checkpoints=1), heir(records=1, checkpoints=2)),
    "late heir and writer": (writer(records=1, checkpoints=2), heir(late=1)),
    "heir builds a wall": (writer(records=3, checkpoints=1), heir(records=1, walls=1)),
    "writer deletes much": (writer(records=1, checkpoints=3), heir(checkpoints=1)),
}
DAMAGED = {
    "writer and heir": (writer(records=1, checkpoints=2), heir(records=1)),
    "writer and reader": (writer(records=2, checkpoints=2), reader()),
}
DEEP = {
    "writer, heir and reader": (writer(records=1, checkpoints=2), heir(records=1, checkpoints=1), reader()),
    "replies are lost or late": (
        writer(records=1, checkpoints=2, late=1, lost=1),
        heir(records=1, late=1, lost=1),
    ),
    "two records": (writer(records=2, checkpoints=3), heir(checkpoints=1)),
    "two heirs": (writer(records=1, checkpoints=2), heir("B", records=1), heir("C", records=1)),
    "late heir and reader": (writer(records=1, checkpoints=2), heir(late=1), reader()),
    "wall and deletion": (writer(records=2, checkpoints=2), heir(records=1, walls=1)),
    "wall and reader": (writer(records=2, checkpoints=1), heir(walls=1), reader()),
    "wall and two heirs": (writer(records=3), heir("B", records=1, walls=1), heir("C", walls=1)),
}
# Rules left out one at a time, and a scenario that needs each.
MUTANTS = {
    "S1: an heir does not look whether its slot had been deleted": (
        Protocol(s1=False), (writer(records=1, checkpoints=2), heir(records=1)), 0,
    ),
    "S2: a reader takes a deleted slot for the end": (
        Protocol(s2=False), (writer(records=1, checkpoints=2), reader()), 0,
    ),
    "S2: an heir does not doubt a seal that leads to an empty epoch": (
        Protocol(s2_first=False), (writer(records=1, checkpoints=2), heir(records=1, late=1)), 0,
    ),
    "S6: an heir tries again with the same token": (
        Protocol(s6=False), (writer(records=1, checkpoints=2), heir(records=1), reader()), 0,
    ),
    "S3: checkpoints are not noted in the log": (
        Protocol(s3_note=False), (writer(records=1, checkpoints=3), heir(checkpoints=1)), 0,
    ),
    "S3: a checkpoint with an earlier log start than the one before": (
        Protocol(s3_start=False), (writer(records=1, checkpoints=2), reader()), 0,
    ),
    "S4: seals are deleted": (
        Protocol(s4=False), (writer(records=1, checkpoints=1), heir(records=1, checkpoints=2)), 0,
    ),
    "S5: everything before the newest checkpoint is deleted": (
        Protocol(s5=False), (writer(records=1, checkpoints=2), heir(records=1)), 1,
    ),
    "put instead of put-if-absent": (
        Protocol(put_if_absent=False), (writer(records=1), heir(records=1)), 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(name, marks=pytest.mark.long if name == "writer deletes much" else ())
        for name in SCENARIOS
    ],
)
def test_no_interleaving_loses_a_record(scenario: str) -> None:
    """Every acknowledged record stays if replies are lost, requests are late, or processes stop."""
    problem, _ = search(Protocol(), SCENARIOS[scenario])
    assert problem is None


@pytest.mark.parametrize("scenario", DAMAGED)
def test_no_interleaving_loses_a_record_with_a_damaged_checkpoint(scenario: str) -> None:
    """The newest checkpoint may be damaged at any moment; the one before it is enough."""
    problem, _ = search(Protocol(), DAMAGED[scenario], damages=1)
    assert problem is None


@pytest.mark.parametrize(
    "rule", [pytest.param(rule, marks=pytest.mark.long if "S6" in rule else ()) for rule in MUTANTS]
)
def test_each_rule_is_needed(rule: str) -> None:
    """Without any one of the rules, some interleaving loses a record or reports missing objects."""
    protocol, processes, damages = MUTANTS[rule]
    problem, _ = search(protocol, processes, damages)
    assert problem is not None


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("scenario", "damages"), [*((name, 0) for name in DEEP), ("two records", 1), ("wall and deletion", 1)]
)
def test_no_interleaving_of_many_steps_loses_a_record(scenario: str, damages: int) -> None:
    """Scenarios with more processes and faults have up to a million states each."""
    problem, _ = search(Protocol(), DEEP[scenario], damages)
    assert problem is None
