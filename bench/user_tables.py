"""Makes typical tables, such as feeds of sensors, orders, logs and ids, to measure their size on
disk.

Each table has its key first, and its rows in no order. Words, users and places have Zipf's
distribution. Times are within a month. Random values cannot be compressed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["TABLES", "UserTable"]

Numbers = np.ndarray

_BEGIN_US: Final = 1_756_684_800_000_000  # 2025-09-01
_MONTH_US: Final = 30 * 86_400_000_000
_UTC: Final = "UTC"


class UserTable(NamedTuple):
    name: str
    key: tuple[str, ...]
    make: Callable[[np.random.Generator, int], dict[str, pa.Array]]
    """Makes the columns of about this number of rows."""

    def rows(self, count: int) -> pa.Table:
        """Return the rows, the same ones for the same count."""
        rng = np.random.default_rng(list(self.name.encode()))
        table = pa.table(self.make(rng, count))
        fields = [field.with_nullable(field.name not in self.key) for field in table.schema]
        return table.cast(pa.schema(fields))


# ------------------------------------------------------------------------------------------------ kinds of columns


def _moments(us: Numbers, unit: str = "us") -> pa.Array:
    step = {"s": 1_000_000, "ms": 1000, "us": 1}[unit]
    return pa.array((np.asarray(us, np.int64) // step), pa.timestamp(unit, _UTC))


def _within_a_month(rng: np.random.Generator, count: int) -> Numbers:
    """Return ascending timestamps in microseconds, more of them at daytime."""
    days = rng.integers(0, 30, count)
    hours = np.clip(rng.normal(14, 4, count), 0, 23.999)
    return np.sort(_BEGIN_US + ((days + hours / 24) * 86_400_000_000).astype(np.int64))


def _some(rng: np.random.Generator, count: int, of: int, exponent: float = 1.1) -> Numbers:
    """Return `count` random numbers below `of`. Small numbers are much more frequent."""
    weights = 1 / np.arange(1, of + 1) ** exponent
    return np.searchsorted(np.cumsum(weights / weights.sum()), rng.random(count)).clip(0, of - 1)


def _choice(rng: np.random.Generator, count: int, *values: str, exponent: float = 1.1) -> pa.Array:
    return pa.array(values).take(pa.array(_some(rng, count, len(values), exponent)))


def _words(rng: np.random.Generator, count: int) -> list[str]:
    """Return invented words. The first ones are short."""
    heads = ["ba", "co", "de", "fi", "gu", "ha", "in", "ka", "lo", "mi", "no", "pe", "ri", "so", "tu", "wa"]
    tails = ["n", "r", "s", "t", "l", "nd", "rt", "st", "ng", ""]
    words: dict[str, None] = {}
    while len(words) < count:
        syllables = 1 + min(3, len(words) // 100 + int(rng.integers(0, 2)))
        word = "".join(heads[i] for i in rng.integers(0, len(heads), syllables)) + tails[rng.integers(0, 10)]
        words[word] = None
    return list(words)


def _sentences(rng: np.random.Generator, count: int, least: int, most: int) -> pa.Array:
    words = np.array(_words(rng, 5000), object)
    lengths = rng.integers(least, most + 1, count)
    picked = words[_some(rng, int(lengths.sum()), len(words), 1.0)]
    ends = np.cumsum(lengths)
    return pa.array([" ".join(picked[end - n : end]) for end, n in zip(ends, lengths, strict=True)])


def _uuids(rng: np.random.Generator, count: int) -> pa.Array:
    """Return random UUIDs, version 4."""
    return _as_uuids(rng.bytes(16 * count), 4)


def _as_uuids(data: bytes, version: int) -> pa.Array:
    """Set version and variant in groups of 16 bytes, and return them as UUIDs."""
    digits = data.hex()
    return pa.array(
        [
            f"{d[:8]}-{d[8:12]}-{version}{d[13:16]}-a{d[17:20]}-{d[20:]}"
            for d in (digits[at : at + 32] for at in range(0, len(digits), 32))
        ]
    )


def _hex(rng: np.random.Generator, count: int, size: int) -> pa.Array:
    digits = rng.bytes(size * count).hex()
    return pa.array([digits[at : at + 2 * size] for at in range(0, len(digits), 2 * size)])


def _cents(rng: np.random.Generator, count: int, mean: float, digits: int = 10) -> pa.Array:
    """Return prices. Most of them end in .99, .49 or .00."""
    whole = rng.lognormal(np.log(mean), 0.8, count).astype(np.int64) * 100
    cents = whole + np.array([99, 49, 0, 95])[_some(rng, count, 4, 0.7)]
    return _decimals(cents, digits)


def _decimals(cents: Numbers, digits: int) -> pa.Array:
    """Return decimals with two places, from 128-bit little-endian numbers."""
    words = np.stack([cents, cents >> 63], axis=1)
    return pa.Array.from_buffers(pa.decimal128(digits, 2), len(cents), [None, pa.py_buffer(words.tobytes())])


def _walk(
    rng: np.random.Generator, series: int, steps: int, start: float, step: float, places: int
) -> Numbers:
    """Return a random walk for each series."""
    return np.round(start + np.cumsum(rng.normal(0, step, (series, steps)), axis=1), places).reshape(-1)


def _nulls(rng: np.random.Generator, values: Numbers, share: float) -> pa.Array:
    return pa.array(values, mask=rng.random(len(values)) < share)


def _grid(count: int, series: int) -> tuple[int, Numbers, Numbers]:
    """Return (number of steps, series of each row, step of each row) for rows with every series at
    every step.
    """
    steps = max(1, count // series)
    return steps, np.repeat(np.arange(series), steps), np.tile(np.arange(steps), series)


# ---------------------------------------------------------------------------------------------------------- tables


def _sensor_minutes(rng: np.random.Generator, count: int) -> dict[str, pa.Array]:
    steps, sensor, step = _grid(count, 500)
    return {
        "sensor": pa.array(sensor.astype(np.int32)),
        "at": _moments(_BEGIN_US + step * 60_000_000, "s"),
        "value": pa.array(_walk(rng, 500, steps, 20, 0.1, 1)),
    }


def _sensor_outages(rng: np.random.Generator, count: int) -> dict[str, pa.Array]:
    steps, sensor, step = _grid(count, 500)
    value = _walk(rng, 500, steps, 20, 0.1, 1)
    there = np.ones(len(sensor), np.bool_)
    for start in rng.integers(0, len(sensor), len(sensor) // 400):
        there[start : start + int(rng.integers(1, 60))] = False
    return {
        "sensor": pa.array(sensor[there].astype(np.int32)),
        "at": _moments((_BEGIN_US + step * 60_000_000)[there], "s"),
        "value": pa.array(value[there]),
    }


def _sensor_jitter(rng: np.random.Generator, count: int) -> dict[str, pa.Array]:
    steps, sensor, step = _grid(count, 200)
    return {
        "sensor": pa.array([f"plant-3/line-{n // 20}/sensor-{n:04d}" for n in range(200)]).take(
            pa.array(sensor)
        ),
        "at": _moments(_BEGIN_US + step * 10_000_000 + rng.integers(0, 400_000, len(step)), "ms"),
        "temperature": pa.array(_walk(rng, 200, steps, 60, 0.2, 2)),
        "pressure": pa.array(_walk(rng, 200, steps, 1013, 0.5, 1)),
        "ok": pa.array(rng.random(len(step)) < 0.995),
    }


def _weather(rng: np.random.Generator, count: int) -> dict[str, pa.Array]:
    steps, station, step = _grid(count, 300)
    return {
        "station": pa.array([f"STN{n * 37 % 10_000:05d}" for n in range(300)]).take(pa.array(station)),
        "hour": _moments(_BEGIN_US + step * 3_600_000_000, "s"),
        "temperature": _nulls(rng, _walk(rng, 300, steps, 12, 0.7, 1), 0.02),
        "humidity": _nulls(rng, np.clip(_walk(rng, 300, steps, 60, 2, 0), 0, 100).astype(np.int16), 0.02),
        "rain_mm": _nulls(rng, np.round(np.maximum(rng.normal(-1, 1, len(step)), 0), 1), 0.1),
        "wind_direction": _nulls(rng, (rng.integers(0, 36, len(step)) * 10).astype(np.int16), 0.05),
    }


def _trace(rng: np.random.Generator, count: int) -> dict[str, pa.Array]:
    steps, vehicle, step = _grid(count, 100)
    return {
        "vehicle": pa.array(vehicle.astype(np.int32)),
        "at": _moments(_BEGIN_US + step * 5_000_000, "s"),
        "latitude": pa.array(_walk(rng, 100, steps, 48.1, 0.0002, 6)),
        "longitude": pa.array(_walk(rng, 100, steps, 11.5, 0.0003, 6)),
        "speed_kmh": pa.array(np.abs(_walk(rng, 100, steps, 40, 3, 0)).astype(np.float32)),
    }


def _ticks(rng: np.random.Generator, count: int) -> dict[str, pa.Array]:
    symbol = np.sort(_some(rng, count, 500))
    return {
        "symbol": pa.array([f"SY{n:03d}" for n in range(500)]).take(pa.array(symbol)),
        "at": _moments(np.sort(_within_a_month(rng, count))),
        "sequence": pa.array(np.arange(count)),
        "price": pa.array(np.round(20 + symbol + np.cumsum(rng.normal(0, 0.01, count)) % 10, 2)),
        "size": pa.array((rng.geometric(0.02, count) * 100).astype(np.int32)),
    }


def _daily_prices(rng: np.random.Generator, count: int) -> dict[str, pa.Array]:
    steps, symbol, step = _grid(count, 2000)
    close = np.abs(_walk(rng, 2000, steps, 100, 1, 2)) + 1
    return {
        "symbol": pa.array([f"SY{n:04d}" for n in range(2000)]).take(pa.array(symbol)),
        "day": pa.array((step + 15_000).astype(np.int32)).cast(pa.date32()),
        "open": pa.array(np.round(close + rng.normal(0, 0.5, len(close)), 2)),
        "high": pa.array(np.round(close + np.abs(rng.normal(0, 1, len(close))), 2)),
        "low": pa.array(np.round(close - np.abs(rng.normal(0, 1, len(close))), 2)),
        "close": pa.array(close),
        "volume": pa.array((rng.lognormal(10, 1, len(close)) * 100).astype(np.int64)),
    }


def _orders(rng: np.random.Generator, count: int) -> dict[str, pa.Array]:
    placed = _within_a_month(rng, count)
    return {
        "order_id": pa.array(10_000_000 + np.arange(count) * 3),
        "customer_id": pa.array(_some(rng, count, 200_000, 0.6)),
        "placed_at": _moments(placed, "ms"),
        "updated_at": _moments(placed + rng.integers(0, 5 * 86_400_000_000, count), "ms"),
        "status": _choice(rng, count, "delivered", "shipped", "paid", "cancelled", "returned"),
        "currency": _choice(rng, count, "EUR", "USD", "GBP", "CHF"),
        "total": _cents(rng, count, 60),
        "coupon": pa.array([None if r > 0.1 else f"SAVE{int(r * 200):02d}" for r in rng.random(count)]),
    }


def _order_lines(rng: np.random.Generator, count: int) -> dict[str, pa.Array]:
    product = _some(rng, count, 20_000, 0.8)
    prices = _cents(rng, 20_000, 30)
    return {
        "order_id": pa.array(10_000_000 + np.arange(count) // 3 * 3),
        "line": pa.array((np.arange(count) % 3 + 1).astype(np.int16)),
        "product_id": pa.array((product * 7919 % 1_000_003).astype(np.int32)),
        "quantity": pa.array(rng.geometric(0.6, count).astype(np.int16)),
        "unit_price": prices.take(pa.array(product)),
    }


def _users(rng: np.random.Generator, count: int) -> dict[str, pa.Array]:
    words = _words(rng, 5000)
    first, last = (np.array(words, object)[_some(rng, count, 5000, 0.7)] for _ in range(2))
    hosts = ("mail.example", "post.example", "work.example", "school.example")
    host = np.array(hosts, object)[_some(rng, count, 4)]
    number = rng.integers(1, 999, count)
    made = zip(first, last, number, host, strict=True)
    return {
        "id": _uuids(rng, count),
        "name": pa.array([f"{a.title()} {b.title()}" for a, b in zip(first, last, strict=True)]),
        "email": pa.array([f"{a}.{b}{n}@{h}" for a, b, n, h in made]),
        "country": _choice(
            rng, count, "DE", "FR", "US", "GB", "PL", "ES", "IT", "NL", "SE", "BR", "IN", "JP"
        ),
        "created_at": _moments(rng.permutation(_within_a_month(rng, count)), "s"),
        "last_seen": _nulls_of(rng, _moments(rng.permutation(_within_a_month(rng, count)), "s"), 0.3),
        "is_active": pa.array(rng.random(count) < 0.8),
    }


def _nulls_of(rng: np.random.Generator, array: pa.Array, share: float) -> pa.Array:
    return pc.if_else(pa.array(rng.random(len(array)) >= share), array, pa.scalar(None, array.type))


def _events(rng: np.random.Generator, count: int) -> dict[str, pa.Array]:
    """Return rows with UUIDs of version 7 as keys: a time, then random bits."""
    at = _within_a_month(rng, count)
    bits = np.frombuffer(rng.bytes(16 * count), np.uint8).reshape(count, 16).copy()
    bits[:, :6] = (at // 1000).astype(">i8").view(np.uint8).reshape(count, 8)[:, 2:]
    kind = _choice(rng, count, "view", "click", "search", "add_to_cart", "purchase", "login", "logout")
    users = rng.permutation(1 << 22)[:60_000]
    user = users[_some(rng, count, 60_000, 0.8)]
    page = _some(rng, count, 3000)
    return {
        "id": _as_uuids(bits.tobytes(), 7),
        "at": _moments(at, "ms"),
        "kind": kind,
        "user_id": pa.array(user.astype(np.int64)),
        "url": pa.array(
            [f"https://shop.example/{'product' if p % 3 else 'category'}/{p * 17 % 3000}" for p in page]
        ),
        "properties": pa.array(
            [f'{{"page": {p}, "variant": "{"ab"[u % 2]}"}}' for p, u in zip(page, user, strict=True)]
        ),
    }


def _impressions(rng: np.random.Generator, count: int) -> dict[str, pa.Array]:
    at = _within_a_month(rng, count)
    return {
        "impression_id": pa.array(rng.integers(-(2**63), 2**63 - 1, count)),
        "at": _moments(at, "ms"),
        "campaign_id": pa.array(_some(rng, count, 400).astype(np.int32)),
        "device": _choice(rng, count, "phone", "desktop", "tablet", "tv"),
        "bid_micros": pa.array((rng.lognormal(7, 0.5, count)).astype(np.int64) * 10),
        "clicked": pa.array(rng.random(count) < 0.01),
    }


def _repositories(rng: np.random.Generator, count: int) -> dict[str, pa.Array]:
    """Return events of a code host: repositories, actors, payloads."""
    owners = _words(rng, 4000)
    repository = _some(rng, count, 60_000, 0.9)
    numbers = rng.integers(1, 700_000_000, 60_000)
    kinds = ("PushEvent", "PullRequestEvent", "IssuesEvent", "WatchEvent", "ForkEvent", "IssueCommentEvent")
    actor = rng.integers(1, 150_000_000, 40_000)[_some(rng, count, 40_000, 0.8)]
    return {
        "event_id": pa.array(50_000_000_000 + np.cumsum(rng.integers(1, 40, count))),
        "type": _choice(rng, count, *kinds),
        "actor_id": pa.array(actor),
        "repository_id": pa.array(numbers[repository]),
        "repository": pa.array([f"{owners[r % 4000]}/{owners[r * 13 % 3989]}-{r % 7}" for r in repository]),
        "head": _hex(rng, count, 20),
        "created_at": _moments(_within_a_month(rng, count), "s"),
    }


def _permissions(rng: np.random.Generator, count: int) -> dict[str, pa.Array]:
    user, resource = rng.integers(0, 20_000, count), rng.integers(0, 50_000, count)
    pairs = np.unique(user * 50_000 + resource)
    return {
        "user": pa.array([f"user-{n // 50_000:06d}" for n in pairs]),
        "resource": pa.array([f"project/{n % 50_000 // 100}/document/{n % 100}" for n in pairs]),
        "level": _choice(rng, len(pairs), "read", "write", "admin"),
    }


def _follows(rng: np.random.Generator, count: int) -> dict[str, pa.Array]:
    """Return pairs of ids of 64 bits."""
    ids = rng.integers(1, 2**62, 100_000)
    pairs = np.unique(_some(rng, count, 100_000, 0.5) * 100_000 + _some(rng, count, 100_000, 0.5))
    return {
        "follower": pa.array(ids[pairs // 100_000]),
        "followed": pa.array(ids[pairs % 100_000]),
        "since": pa.array(rng.integers(19_000, 20_400, len(pairs)).astype(np.int32)).cast(pa.date32()),
    }


def _labels(rng: np.random.Generator, count: int) -> dict[str, pa.Array]:
    return {
        "sample": _hex(rng, count, 16),
        "label": pa.array(_some(rng, count, 10).astype(np.int8)),
        "score": pa.array(rng.beta(5, 1, count).astype(np.float32)),
    }


def _features(rng: np.random.Generator, count: int) -> dict[str, pa.Array]:
    columns = {"id": pa.array(np.arange(count // 8))}
    for number in range(32):
        columns[f"f{number}"] = pa.array(rng.normal(0, 1, count // 8).astype(np.float32))
    return columns


def _logs(rng: np.random.Generator, count: int) -> dict[str, pa.Array]:
    host = _some(rng, count, 40, 0.3)
    order = np.argsort(host, kind="stable")
    return {
        "host": pa.array([f"ip-10-0-{n}-17.internal.example" for n in range(40)]).take(pa.array(host[order])),
        "at": _moments(_within_a_month(rng, count)[order]),
        "sequence": pa.array(np.arange(count)),
        "level": _choice(rng, count, "INFO", "WARN", "ERROR", "DEBUG", exponent=1.5),
        "logger": _choice(rng, count, *(f"org.example.service.{w}.Handler" for w in _words(rng, 60))),
        "message": _sentences(rng, count, 4, 14),
    }


def _messages(rng: np.random.Generator, count: int) -> dict[str, pa.Array]:
    room = np.sort(_some(rng, count, 3000, 0.9))
    people = rng.integers(1, 2**40, 40_000)
    return {
        "room": pa.array(room.astype(np.int32)),
        "message_id": pa.array(np.arange(count) * 1009),
        "author": pa.array(people[_some(rng, count, 40_000, 0.8)]),
        "at": _moments(_within_a_month(rng, count), "ms"),
        "text": _sentences(rng, count, 1, 18),
        "reply_to": _nulls(rng, np.arange(count) * 1009, 0.8),
    }


def _balances(rng: np.random.Generator, count: int) -> dict[str, pa.Array]:
    steps, account, step = _grid(count, max(1, count // 30))
    moved = rng.random(len(step)) < 0.1
    cents = (
        np.where(moved, rng.integers(-50_000, 50_000, len(step)), 0).reshape(-1, steps).cumsum(axis=1)
        + 100_000
    )
    return {
        "account": pa.array(4_000_000_000 + account * 97),
        "day": pa.array((step + 20_332).astype(np.int32)).cast(pa.date32()),
        "balance": _decimals(cents.reshape(-1), 14),
    }


def _stock(rng: np.random.Generator, count: int) -> dict[str, pa.Array]:
    warehouse, item = np.divmod(np.sort(rng.choice(count * 2, count, replace=False)), max(1, count * 2 // 20))
    return {
        "warehouse": pa.array(warehouse.astype(np.int16)),
        "sku": pa.array([f"{'ABCDEFGH'[n % 8]}{n:06d}-{n * 31 % 97:02d}" for n in item]),
        "on_hand": pa.array(rng.geometric(0.05, count).astype(np.int32)),
        "reserved": pa.array(
            np.where(rng.random(count) < 0.9, 0, rng.integers(1, 9, count)).astype(np.int32)
        ),
        "counted_on": pa.array(rng.integers(20_300, 20_362, count).astype(np.int32)).cast(pa.date32()),
    }


def _switches(rng: np.random.Generator, count: int) -> dict[str, pa.Array]:
    return {
        "device": pa.array(_distinct(rng, count, 2**40)),
        "is_on": pa.array(rng.random(count) < 0.4),
    }


def _distinct(rng: np.random.Generator, count: int, below: int) -> Numbers:
    found = np.unique(rng.integers(0, below, count + count // 10))
    return np.sort(rng.permutation(found)[:count])


def _metrics(rng: np.random.Generator, count: int) -> dict[str, pa.Array]:
    steps, series, step = _grid(count, 400)
    names = [f"http_requests_total_{w}" for w in _words(rng, 20)]
    growth = rng.poisson(3, (400, steps)).cumsum(axis=1).reshape(-1)
    return {
        "metric": pa.array(names).take(pa.array(series % 20)),
        "labels": pa.array([f'pod="web-{n // 20}",zone="eu-{n % 3}"' for n in range(400)]).take(
            pa.array(series)
        ),
        "at": _moments(_BEGIN_US + step * 15_000_000, "ms"),
        "value": pa.array(growth.astype(np.float64)),
    }


def _pages(rng: np.random.Generator, count: int) -> dict[str, pa.Array]:
    words = _words(rng, 3000)
    path = zip(*(np.array(words, object)[_some(rng, count // 4, 3000, 0.7)] for _ in range(3)), strict=True)
    return {
        "url": pa.array([f"https://www.{a}.example/{b}/{c}-{n}.html" for n, (a, b, c) in enumerate(path)]),
        "fetched_at": _moments(rng.permutation(_within_a_month(rng, count // 4)), "s"),
        "status": pa.array(np.array([200, 301, 404, 500], np.int16)[_some(rng, count // 4, 4, 2.0)]),
        "body": _sentences(rng, count // 4, 20, 60),
    }


def _customers(rng: np.random.Generator, count: int) -> dict[str, pa.Array]:
    """Return rows with thirty columns of a business application. Half of the columns are mostly
    NULL.
    """
    columns = {"id": pa.array(np.arange(count // 4) * 2 + 1)}
    for number in range(10):
        columns[f"flag_{number}"] = _nulls(rng, rng.random(count // 4) < 0.1, 0.5)
    for number in range(8):
        columns[f"code_{number}"] = _nulls_of(
            rng, _choice(rng, count // 4, *(f"C{number}{n:02d}" for n in range(30))), 0.1 * number
        )
    for number in range(6):
        columns[f"amount_{number}"] = _nulls(rng, np.round(rng.lognormal(4, 1, count // 4), 2), 0.15 * number)
    for number in range(5):
        columns[f"note_{number}"] = _nulls_of(rng, _sentences(rng, count // 4, 1, 6), 0.9)
    return columns


TABLES: Final = (
    UserTable("sensor_minutes", ("sensor", "at"), _sensor_minutes),
    UserTable("sensor_outages", ("sensor", "at"), _sensor_outages),
    UserTable("sensor_jitter", ("sensor", "at"), _sensor_jitter),
    UserTable("weather", ("station", "hour"), _weather),
    UserTable("trace", ("vehicle", "at"), _trace),
    UserTable("metrics", ("metric", "labels", "at"), _metrics),
    UserTable("ticks", ("symbol", "at", "sequence"), _ticks),
    UserTable("daily_prices", ("symbol", "day"), _daily_prices),
    UserTable("balances", ("account", "day"), _balances),
    UserTable("orders", ("order_id",), _orders),
    UserTable("order_lines", ("order_id", "line"), _order_lines),
    UserTable("stock", ("warehouse", "sku"), _stock),
    UserTable("customers", ("id",), _customers),
    UserTable("users", ("id",), _users),
    UserTable("events", ("id",), _events),
    UserTable("impressions", ("impression_id",), _impressions),
    UserTable("repositories", ("event_id",), _repositories),
    UserTable("logs", ("host", "at", "sequence"), _logs),
    UserTable("messages", ("room", "message_id"), _messages),
    UserTable("pages", ("url",), _pages),
    UserTable("permissions", ("user", "resource"), _permissions),
    UserTable("follows", ("follower", "followed"), _follows),
    UserTable("switches", ("device",), _switches),
    UserTable("labels", ("sample",), _labels),
    UserTable("features", ("id",), _features),
)
