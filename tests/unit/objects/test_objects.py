"""Every implementation of `Objects` gives the guarantees of `nyala.objects.base`."""

from __future__ import annotations

import copy
import itertools
import os
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.objects.buckets import Bucket

from nyala.env import Bytes, MissingFileError
from nyala.errors import InvalidArgumentError, StorageError
from nyala.objects import handle
from nyala.objects.base import ObjectInfo, Objects


def keys(found: list[ObjectInfo]) -> list[str]:
    return [info.key for info in found]


def test_create_stores_only_the_first_bytes(objects: Objects) -> None:
    assert objects.create("log/0", b"first")
    assert not objects.create("log/0", b"second")
    assert objects.get("log/0") == b"first"


def test_create_works_again_after_a_delete(objects: Objects) -> None:
    assert objects.create("log/0", b"first")
    objects.delete(["log/0"])
    assert objects.get("log/0") is None
    assert objects.create("log/0", b"second")
    assert objects.get("log/0") == b"second"


def test_put_replaces_an_object(objects: Objects) -> None:
    objects.put("writer", b"a long first text")
    objects.put("writer", b"second")
    assert objects.get("writer") == b"second"
    assert not objects.create("writer", b"third")


@pytest.mark.parametrize(
    "body", [b"", b"bytes", bytearray(b"bytes"), memoryview(b"bytes"), pa.py_buffer(b"bytes")]
)
def test_a_body_is_any_buffer(objects: Objects, body: Bytes) -> None:
    assert objects.create("a", body)
    objects.put("b", body)
    assert objects.upload("c", [body, body]) == 2 * memoryview(body).nbytes
    expected = bytes(memoryview(body))
    assert [objects.get(key) for key in "abc"] == [expected, expected, expected * 2]


def test_a_copy_stays_when_its_source_is_deleted(objects: Objects) -> None:
    objects.upload("staging/1", [b"x" * 9_000_000, b"end"])
    objects.copy("staging/1", "data/1")
    objects.delete(["staging/1"])
    assert objects.get("data/1") == b"x" * 9_000_000 + b"end"
    with pytest.raises(MissingFileError, match="staging/1 does not exist"):
        objects.copy("staging/1", "data/2")
    assert objects.get("data/2") is None


def test_closing_a_client_does_not_close_another(objects: Objects) -> None:
    other = objects.client()
    other.put("a", b"theirs")
    other.close()
    assert objects.get("a") == b"theirs"


def test_every_client_sees_all_writes(bucket: Bucket) -> None:
    writer, reader = bucket.client(), bucket.client()
    for number in range(5):
        assert writer.create(f"log/{number}", b"x" * number)
        assert reader.get(f"log/{number}") == b"x" * number
        assert keys(reader.list("log/")) == [f"log/{n}" for n in range(number + 1)]
        info = reader.head(f"log/{number}")
        assert info is not None and (info.key, info.size_bytes) == (f"log/{number}", number)
    writer.delete(["log/1", "log/3"])
    assert keys(reader.list("log/")) == ["log/0", "log/2", "log/4"]
    assert reader.head("log/3") is None


NAMES = ["a-b", "a/b-", "a/b/0.x", "a/c", "a0", "B", "b/x/y/z", "b/x/y0", "_", "=", "a/10", "a/9"]
BEGINNINGS = ["", "a", "a/", "a/b", "a/b-", "b/x", "b/x/y/", "nothing", "nothing/at/all"]


def test_list_is_sorted_by_the_characters_of_the_whole_key(objects: Objects) -> None:
    """Keys are sorted as whole texts: "a-b" comes before "a/b", and "a/10" before "a/9"."""
    for name in NAMES:
        objects.put(name, b"")
    for under in BEGINNINGS:
        expected = [name for name in sorted(NAMES) if name.startswith(under)]
        assert keys(objects.list(under)) == expected, under


def test_list_begins_after_a_key(bucket: Bucket) -> None:
    objects = bucket.client()
    # SeaweedFS 4.48 omits the folder "a/" from a list after "a-b".
    names = NAMES if bucket.kind != "seaweedfs" else [f"log/{n // 5:04}-x/{n % 5:04}" for n in range(12)]
    for name in names:
        objects.put(name, b"")
    for under in BEGINNINGS if names is NAMES else ["", "log/", "log/0001-x/"]:
        expected = [name for name in sorted(names) if name.startswith(under)]
        for after in [*sorted(names), "0", "a/b/", "a/zz", "zz", "log/0001"]:
            assert keys(objects.list(under, after)) == [name for name in expected if name > after]


def test_list_has_sizes_and_times_as_head_has(objects: Objects) -> None:
    objects.put("a", b"123")
    objects.put("b", b"")
    listed = objects.list("")
    assert [info.size_bytes for info in listed] == [3, 0]
    heads = [objects.head(info.key) for info in listed]
    # A bucket may return whole seconds in one of the two.
    assert [info.modified_us // 1_000_000 for info in listed] == [
        info.modified_us // 1_000_000 for info in heads if info is not None
    ]


def test_time_moves_forward_with_the_clock_of_the_bucket(bucket: Bucket) -> None:
    objects = bucket.client()
    objects.put("a", b"")
    bucket.advance(90.0)
    objects.put("b", b"")
    a, b = objects.list("")
    assert 89_000_000 <= b.modified_us - a.modified_us <= 100_000_000


def test_ranges_come_in_their_order_and_are_cut_off_at_the_end(objects: Objects) -> None:
    body = bytes(range(256)) * 20_000  # 5 MB: far ranges are requests of their own
    objects.put("data", body)
    size = len(body)
    ranges = [(10, 20), (size - 5, size + 100), (0, 0), (3_000_000, 3_000_300), (15, 40), (size, size + 1),
              (size + 5, size + 9), (0, 1), (2_000_000, 2_000_000), (0, 1_000)]  # fmt: skip
    assert [bytes(memoryview(part)) for part in objects.get_ranges("data", ranges)] == [
        body[lower:upper] for lower, upper in ranges
    ]
    assert objects.get_ranges("data", []) == []
    # Two near ranges, the second behind the object's end: obstore would panic if they shared a request.
    near = objects.get_ranges("data", [(size - 3_000, size - 2_990), (size + 500, size + 600)])
    assert [bytes(memoryview(part)) for part in near] == [body[-3_000:-2_990], b""]


def test_ranges_of_a_missing_object_raise(objects: Objects) -> None:
    with pytest.raises(MissingFileError, match="missing does not exist") as raised:
        objects.get_ranges("missing", [(0, 10)])
    assert raised.value.path == f"{objects.url}/missing"
    with pytest.raises(MissingFileError):
        objects.get_ranges("missing", [(0, 0)])


def test_ranges_of_an_empty_object_are_empty(objects: Objects) -> None:
    objects.put("empty", b"")
    assert [bytes(memoryview(part)) for part in objects.get_ranges("empty", [(0, 10), (3, 3)])] == [b"", b""]


def test_a_missing_object_is_no_error(objects: Objects) -> None:
    assert objects.get("missing") is None
    assert objects.head("missing") is None
    assert objects.list("missing") == []
    objects.delete([])
    objects.delete(["missing", "also/missing"])


def test_many_objects_are_deleted_by_one_call(objects: Objects) -> None:
    names = [f"data/{number:04}" for number in range(30)]
    for name in names:
        objects.put(name, b"")
    objects.delete(names[::2])
    assert keys(objects.list("data/")) == names[1::2]


def test_an_upload_of_many_parts_is_one_object(objects: Objects) -> None:
    """The given parts are larger and smaller than the parts of the multipart upload."""
    sizes = [0, 1, 3_000_000, 7, 6_000_001, 2_500_000]
    parts = [bytes([65 + number]) * size for number, size in enumerate(sizes)]
    assert objects.upload("data/large", iter(parts)) == sum(sizes)
    info = objects.head("data/large")
    assert info is not None and info.size_bytes == sum(sizes)
    assert objects.get("data/large") == b"".join(parts)


def test_an_upload_of_nothing_is_an_empty_object(objects: Objects) -> None:
    assert objects.upload("data/empty", []) == 0
    assert objects.get("data/empty") == b""


@pytest.mark.parametrize("size", [10, 20_000_000], ids=["small", "large"])
def test_an_upload_whose_parts_fail_leaves_no_object(objects: Objects, size: int) -> None:
    """If reading the parts raises, even by Ctrl-C, no object appears."""

    def parts() -> Iterator[bytes]:
        yield bytes(size)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        objects.upload("data/part", parts())
    assert objects.list("") == []
    assert objects.create("data/part", b"whole")


BAD_KEYS = ["", "/a", "a/", "a//b", "..", "a/../b", "./a", ".tmp", "a/.hidden", "a\\b", "a b", "a\0", "é", "a%2Fb",
            "x" * 256, "/".join(["x" * 200] * 3), "a?b", "a#b", "a\n"]  # fmt: skip


def test_an_invalid_key_is_rejected(objects: Objects) -> None:
    calls: list[Callable[[str], Any]] = [
        lambda key: objects.create(key, b""),
        lambda key: objects.put(key, b""),
        lambda key: objects.upload(key, []),
        lambda key: objects.get(key),
        lambda key: objects.get_ranges(key, []),
        lambda key: objects.head(key),
        lambda key: objects.delete(["good", key]),
    ]
    objects.put("good", b"")
    for key, call in itertools.product(BAD_KEYS, calls):
        with pytest.raises(InvalidArgumentError, match="is not a valid key"):
            call(key)
    assert keys(objects.list("")) == ["good"]
    if key not in ("", "a/"):  # a valid beginning
        with pytest.raises(InvalidArgumentError, match="is not a valid key"):
            objects.list(key)


def test_an_object_that_is_too_large_is_not_read_whole(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size of an object is checked before memory for it is allocated."""
    monkeypatch.setattr(handle, "WHOLE_MAX_BYTES", 100)
    objects.put("just", bytes(100))
    objects.put("large", bytes(101))
    assert objects.get("just") == bytes(100)
    with pytest.raises(StorageError, match="large has 101 bytes, too many to read at once"):
        objects.get("large")


def test_closed_objects_raise(objects: Objects) -> None:
    objects.close()
    objects.close()
    calls: list[Callable[[], Any]] = [
        lambda: objects.create("a", b""),
        lambda: objects.put("a", b""),
        lambda: objects.upload("a", []),
        lambda: objects.get("a"),
        lambda: objects.get_ranges("a", []),
        lambda: objects.head("a"),
        lambda: objects.list(""),
        lambda: objects.delete([]),
    ]
    for call in calls:
        with pytest.raises(StorageError, match="is closed: connect\\(\\) again") as raised:
            call()
        assert raised.value.path == objects.url


def test_objects_cannot_be_pickled_or_copied(objects: Objects) -> None:
    """A pickle would contain credentials."""
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled or copied: pass the URL"):
            attempt(objects)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_gets_an_error_and_does_not_hang(objects: Objects) -> None:
    objects.put("a", b"")  # so that threads and connections exist
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            objects.get("a")
            os.write(writer, b"no error")
        except StorageError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        message = pipe.read().decode()
    os.waitpid(pid, 0)
    assert "was opened before this process was forked" in message
    assert objects.get("a") == b""
