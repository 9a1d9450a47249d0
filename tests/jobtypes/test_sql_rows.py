"""The sensor ``sql_rows`` on each kind of database: every row once, whatever order they are committed in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Connection, Engine

from celery_sched.errors import InvalidValue
from celery_sched.jobtypes import sql_rows
from celery_sched.jobtypes.sql_rows import NotTellable
from celery_sched.store import rows
from celery_sched.store.elsewhere import StatementFailed
from celery_sched.store.sensors import SeenElsewhere
from tests.jobtypes.sensing import Watch
from tests.store.world import Bench, bench_url, make_bench

__all__ = ["bench_url", "make_bench"]
COLUMNS = {
    "sqlite": "id INTEGER PRIMARY KEY, name TEXT, at TIMESTAMP, amount NUMERIC",
    "postgresql": "id BIGSERIAL PRIMARY KEY, name TEXT, at TIMESTAMPTZ, amount NUMERIC(20, 4)",
    "mysql": "id BIGINT AUTO_INCREMENT PRIMARY KEY, name TEXT, at DATETIME(6), amount DECIMAL(20, 4)",
}


class Shop:
    """The database that is looked at: a table of orders."""

    def __init__(self, url: str) -> None:
        self.engine: Engine = create_engine(url)
        self.do("DROP TABLE IF EXISTS shop_order")
        self.do(f"CREATE TABLE shop_order ({COLUMNS[self.engine.dialect.name]})")

    def do(self, statement: str, **values: Any) -> None:
        with self.engine.begin() as connection:
            connection.execute(text(statement), values)

    def add(self, name: str, at: str = "2030-01-01 00:00:00", amount: Any = 1, id: int | None = None) -> None:
        names = "name, at, amount" + ("" if id is None else ", id")
        marks = ":name, :at, :amount" + ("" if id is None else ", :id")
        values = {"name": name, "at": at, "amount": amount, **({} if id is None else {"id": id})}
        self.do(f"INSERT INTO shop_order ({names}) VALUES ({marks})", **values)


@pytest.fixture
def bench(make_bench: Callable[..., Bench], bench_url: str) -> Bench:
    return make_bench(connections={"shop": bench_url})


@pytest.fixture
def shop(bench: Bench, bench_url: str) -> Iterator[Shop]:
    made = Shop(bench_url)
    yield made
    made.do("DROP TABLE shop_order")
    made.engine.dispose()


def make(bench: Bench, **kwargs: Any) -> Watch:
    query = "SELECT id, name FROM shop_order"
    return Watch(bench, "sql_rows", **{"connection": "shop", "query": query, "cursor": "id", **kwargs})


def names(watch: Watch) -> list[str]:
    return [one["name"] for one in watch.news()]


def test_new_rows(bench: Bench, shop: Shop) -> None:
    """What is there at first is known; each later row is one event, once."""
    shop.add("old")
    watch = make(bench)
    assert {"published": 0, "first": True} == watch.look()
    shop.add("a"), shop.add("b")
    assert {"published": 2, "left": False} == watch.look()
    assert [{"id": 2, "name": "a"}, {"id": 3, "name": "b"}] == watch.news()
    assert 0 == watch.look()["published"]
    bench.clock.advance(3600)
    assert 0 == watch.look()["published"]
    version = watch.version()
    assert 0 == watch.look()["published"]
    assert version == watch.version()


def test_from_the_beginning_in_parts(bench: Bench, shop: Shop) -> None:
    """With ``start: beginning`` everything is new, so many a run."""
    for name in "abcde":
        shop.add(name)
    watch = make(bench, start="beginning", most=2)
    assert {"published": 2, "left": True} == watch.look()
    watch.look(), watch.look(), watch.look()
    assert list("abcde") == names(watch)


def test_row_that_is_committed_late(bench: Bench, shop: Shop) -> None:
    """A row with a lower number than one that was published is found when it is committed at last."""
    watch = make(bench)
    watch.look()
    shop.add("a", id=1), shop.add("c", id=3)
    watch.look()
    bench.clock.advance(50)
    shop.add("b", id=2)
    watch.look()
    bench.clock.advance(3600)
    watch.look()
    assert ["a", "c", "b"] == names(watch)


def test_transaction_that_is_open(bench: Bench, shop: Shop) -> None:
    """A row of an open transaction is published when that is committed, and never if it is rolled back."""
    if shop.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has one writer: nobody commits out of order")
    watch = make(bench)
    watch.look()

    def insert(connection: Connection, name: str) -> None:
        connection.execute(text("INSERT INTO shop_order (name) VALUES (:name)"), {"name": name})

    with shop.engine.connect() as slow, shop.engine.connect() as undone:
        with slow.begin(), undone.begin() as away:
            insert(slow, "slow"), insert(undone, "undone")
            shop.add("fast")
            watch.look()
            assert ["fast"] == names(watch)
            away.rollback()
    watch.look()
    assert ["slow"] == names(watch)


@pytest.mark.parametrize("column", ["id", "at", "amount", "name"])
def test_kinds_of_cursors(bench: Bench, shop: Shop, column: str) -> None:
    """Numbers, times, decimals and texts are cursors: the place is remembered exactly."""
    values = [("a", "2030-01-01 00:00:00.000001", "0.0001"), ("b", "2030-01-01 00:00:00.000002", "0.0002")]
    watch = make(bench, query="SELECT * FROM shop_order", cursor=column, start="beginning")
    for name, at, amount in values:
        shop.add(name, at, Decimal(amount) if shop.engine.dialect.name != "sqlite" else float(amount))
        watch.look()
        bench.clock.advance(3600)
        assert 0 == watch.look()["published"]
    assert ["a", "b"] == names(watch)


def test_time_that_rows_share(bench: Bench, shop: Shop) -> None:
    """Rows of one time are told apart by their identity; a row that is written again is new again."""
    watch = make(bench, query="SELECT id, name, at FROM shop_order", cursor="at", identity=["id", "at"])
    shop.add("old")
    watch.look()
    shop.add("a")
    watch.look()
    bench.clock.advance(3600)
    watch.look()
    shop.add("b")  # of the same time as the place
    watch.look()
    assert ["a", "b"] == names(watch)
    shop.do("UPDATE shop_order SET name = 'a2', at = '2030-01-02 00:00:00' WHERE name = 'a'")
    watch.look()
    assert ["a2"] == names(watch)


def test_rows_that_cannot_be_told_apart(bench: Bench, shop: Shop) -> None:
    """Two rows with the same cursor and no identity fail the run: one of them would be lost."""
    watch = make(bench, query="SELECT name, at FROM shop_order", cursor="at")
    watch.look()
    shop.add("a"), shop.add("b")
    with pytest.raises(NotTellable, match="the same at"):
        watch.look()
    assert [] == watch.news()


def test_query_of_ones_own(bench: Bench, shop: Shop) -> None:
    """Parameters, conditions, an order, a comment at the end and a semicolon are all right; so is a key."""
    query = "SELECT id AS number, name FROM shop_order WHERE name <> :but ORDER BY name DESC -- all others\n;"
    watch = make(bench, query=query, cursor="number", key="name", parameters={"but": "x"}, start="beginning")
    for name in "axb":
        shop.add(name)
    watch.look()
    assert ["a", "b"] == names(watch)
    found = bench.client.events()
    assert ["b", "a"] == [event.key for event in found]


def test_rows_without_a_cursor(bench: Bench, shop: Shop) -> None:
    """Rows whose cursor is NULL have no place; they come when they get one."""
    watch = make(bench, query="SELECT id, name, at FROM shop_order", cursor="at", start="beginning")
    shop.do("INSERT INTO shop_order (name) VALUES ('a')")
    watch.look()
    assert [] == names(watch)
    shop.do("UPDATE shop_order SET at = '2030-01-01 00:00:00'")
    watch.look()
    assert ["a"] == names(watch)


def test_long_row(bench: Bench, shop: Shop) -> None:
    """Of a row that is too large for an event, the columns come that find it; the others are not blocked."""
    watch = make(bench, start="beginning")
    shop.add("x" * 60_000), shop.add("b")
    assert 2 == watch.look()["published"]
    assert [{"id": 1, "cut": True}, {"id": 2, "name": "b"}] == watch.news()


def test_too_many_within_look_back(bench: Bench, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered is bounded: then it goes on as the time passes, and loses nothing."""
    monkeypatch.setattr(sql_rows, "MOST_RECENT", 3)
    watch = make(bench, start="beginning")
    for name in "abcde":
        shop.add(name)
    assert [3, 0] == [watch.look()["published"] for _ in range(2)]
    bench.clock.advance(61)
    assert 0 == watch.look()["published"]  # now the place moves
    assert 2 == watch.look()["published"]
    assert list("abcde") == names(watch)


def test_stale_run_publishes_nothing(bench: Bench, shop: Shop) -> None:
    """A run that has lost its lease publishes nothing and moves no place; the next one publishes."""
    watch = make(bench)
    watch.look()
    shop.add("a")
    run = watch.begun()
    bench.clock.advance(bench.config.lease.total_seconds() + 1)
    assert 1 == len(bench.sweep().settled)
    with pytest.raises(SeenElsewhere):
        watch.sensed(run)
    assert [] == watch.news()
    watch.look()
    assert ["a"] == names(watch)


def test_two_runs_at_once(bench: Bench, shop: Shop) -> None:
    """Where runs may overlap, of two that saw the same row one publishes it; the other fails."""
    watch = make(bench, start="beginning")
    shop.add("a")
    watch.bench.client.edit("watch", overlap="concurrent")
    one, two = watch.begun(), watch.begun()
    between: list[Any] = []
    original = rows.Query.since

    def since(self: Any, floor: Any, limit: int) -> Any:
        found = original(self, floor, limit)
        if not between:
            between.append(True)
            between.append(watch.sensed(two))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows.Query, "since", since)
        with pytest.raises(SeenElsewhere, match="looked first"):
            watch.sensed(one)
    assert 1 == between[1]["published"]
    assert ["a"] == names(watch)


def test_query_that_is_refused(bench: Bench, shop: Shop) -> None:
    """What the database says of a wrong query fails the run, and shows no password."""
    watch = make(bench, query="SELECT id, nonsense FROM shop_order")
    with pytest.raises(StatementFailed, match="nonsense"):
        watch.look()
    with pytest.raises(StatementFailed):
        watch.look(query="SELECT id FROM shop_order", cursor="nonsense")
    with pytest.raises(InvalidValue, match="'name' is refused: it is given in parameters"):
        watch.look(query="SELECT id FROM shop_order WHERE name = :name", cursor="id")
    shop.add("a")
    watch.kwargs["query"] = "SELECT id FROM shop_order WHERE :sched_scheduled_for > '1999-01-01'"
    with pytest.raises(InvalidValue, match="one that the query has: id"):
        watch.look(cursor="id", key="name", start="beginning")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"query": "DELETE FROM shop_order"}, "one SELECT"),
        ({"query": "SELECT 1; SELECT 2"}, "one SELECT"),
        ({"query": ""}, "query"),
        ({"cursor": None}, "cursor"),
        ({"look_back": "2d"}, "look_back"),
        ({"parameters": {"a b": 1}}, "parameters"),
    ],
)
def test_refused_when_defined(given: dict[str, Any], named: str) -> None:
    """A sensor that cannot work is not defined; the message names the field."""
    good = {"topic": "t", "connection": "shop", "query": "SELECT 1 AS id", "cursor": "id"}
    with pytest.raises(InvalidValue, match=named):
        sql_rows.SqlRows().read({**good, **given})
