"""The job types `sql` and `task` on real databases: bound, in one transaction, bounded."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from celery import Celery

from celery_sched.errors import InvalidValue
from celery_sched.jobtypes import registry
from celery_sched.jobtypes.base import JobType
from celery_sched.jobtypes.task import WrongRows
from celery_sched.store.elsewhere import StatementFailed
from tests.jobtypes.carried import RUN, carry_out, context_of


@pytest.fixture
def shop(database_url: str) -> str:
    """The URL of a database with a table."""
    if database_url.startswith("sqlite"):
        Path(database_url.removeprefix("sqlite:///")).touch()
    engine = sa.create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(
            sa.text("CREATE TABLE orders (id INTEGER PRIMARY KEY, name VARCHAR(50), at VARCHAR(40))")
        )
    engine.dispose()
    return database_url


def names(url: str) -> list[str]:
    """What is in the table."""
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        found = list(connection.execute(sa.text("SELECT name FROM orders ORDER BY id")).scalars())
    engine.dispose()
    return found


def do(url: str, *statements: str, settings: dict[str, Any] | None = None, **kwargs: Any) -> Any:
    """The result of a job of the type `sql`."""
    given = {"connection": "shop", **({"statement": list(statements)} if statements else {}), **kwargs}
    return carry_out("sql", given, connections={"shop": url}, **(settings or {}))


INSERT = "INSERT INTO orders (id, name) VALUES (:id, :name)"


def test_statements_and_their_rows(shop: str) -> None:
    """The result has the number of rows of each statement, and the first rows of queries where asked."""
    odd = "x'); DROP TABLE orders; -- :id %s"
    inserted = do(shop, INSERT, parameters={"id": 1, "name": odd})
    assert (1, [{"rows": 1}]) == (inserted["rows"], inserted["statements"])
    assert [odd] == names(shop)
    for number in range(2, 6):
        do(shop, INSERT, parameters={"id": number, "name": f"n{number}"})
    result = do(
        shop,
        "UPDATE orders SET name = 'same' WHERE id > 3",
        "SELECT id, name FROM orders WHERE id > :low ORDER BY id",
        parameters={"low": 2},
        keep_rows=2,
    )
    assert [
        {"rows": 2},
        {"rows": 3, "columns": ["id", "name"], "first": [[3, "n3"], [4, "same"]]},
    ] == result["statements"]
    assert {"rows": 5, "columns": ["id"]} == do(shop, "SELECT id FROM orders")["statements"][0]


def test_all_or_nothing(shop: str) -> None:
    """When one statement fails, nothing of the run is kept; without `transaction` what came before is."""
    both = ("INSERT INTO orders (id, name) VALUES (1, 'a')", "INSERT INTO orders (id, name) VALUES (1, 'b')")
    with pytest.raises(StatementFailed, match="statement 2 of 2 was refused"):
        do(shop, *both)
    assert [] == names(shop)
    with pytest.raises(StatementFailed):
        do(shop, *both, transaction=False)
    assert ["a"] == names(shop)


def test_what_every_job_has(shop: str) -> None:
    """Run, attempt and occurrence can be bound: for work that must not be done twice."""
    values = ":sched_fence, :sched_run_id, :sched_scheduled_for"
    do(shop, f"INSERT INTO orders (id, name, at) VALUES ({values})")
    assert [RUN] == names(shop)
    engine = sa.create_engine(shop)
    with engine.connect() as connection:
        at = connection.execute(sa.text("SELECT at FROM orders WHERE id = 7")).scalar_one()
    engine.dispose()
    assert str(at).startswith("2026-01-31 09:00:00")


SLOW = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
    "postgresql": "SELECT pg_sleep(60)",
    "mysql": "SELECT count(*) FROM seq_1_to_1000000000 a, seq_1_to_1000000000 b",
    "mariadb": "SELECT count(*) FROM seq_1_to_1000000000 a, seq_1_to_1000000000 b",
}


def test_a_slow_statement_is_ended(shop: str) -> None:
    """After its time a statement is ended by the server, and nothing of the run is kept."""
    kind = shop.partition(":")[0].partition("+")[0]
    with pytest.raises(TimeoutError, match="statement 2 of 2 did not end within 3 s"):
        do(shop, "INSERT INTO orders (id, name) VALUES (1, 'a')", SLOW[kind], timeout="3s")
    assert [] == names(shop)


def test_a_file(tmp_path: Path, shop: str) -> None:
    """A file in the worker's folder, read when the job runs; nothing outside of the folder."""
    folder = tmp_path / "sql"
    folder.mkdir()
    (folder / "load.sql").write_text(
        "-- two\nINSERT INTO orders (id, name) VALUES (1, 'a;b');\nUPDATE orders SET name = :name;\n"
    )
    (folder / "out.sql").symlink_to(tmp_path / "elsewhere.sql")
    (tmp_path / "elsewhere.sql").write_text("DELETE FROM orders")
    settings = {"sql_folder": str(folder)}
    result = do(shop, file="load.sql", parameters={"name": "c"}, settings=settings)
    assert ([1, 1], ["c"]) == ([one["rows"] for one in result["statements"]], names(shop))
    for name in ("out.sql", "none.sql"):
        with pytest.raises(InvalidValue, match="sql: file"):
            do(shop, file=name, settings=settings)
    with pytest.raises(InvalidValue, match="sched_sql_folder is set on this worker"):
        do(shop, file="load.sql")
    assert ["c"] == names(shop)


def test_what_a_worker_does_not_have(tmp_path: Path) -> None:
    """A connection, a file or a driver that is not there fails the run by name, without a password."""
    absent = tmp_path / "absent.sqlite3"
    for url, said in (
        (f"sqlite:///{absent}", "a file that is there"),
        ("nothing://u:hidden@host/x", "its driver is installed"),
        ("no url, hidden", "an SQLAlchemy URL"),
    ):
        with pytest.raises(InvalidValue) as caught:
            do(url, "SELECT 1")
        assert said in str(caught.value)
        assert "hidden@" not in str(caught.value)
    assert not absent.exists()
    with pytest.raises(StatementFailed, match="no connection to postgresql"):
        do("postgresql+psycopg://u:hidden@127.0.0.1:1/x", "SELECT 1", timeout="5s")
    with pytest.raises(InvalidValue, match="there are: shop"):
        carry_out("sql", {"connection": "sohp", "statement": "SELECT 1"}, connections={"shop": "sqlite:///x"})


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"statement": "SELECT 1"}, "connection None is refused: it must be given"),
        ({"connection": "a"}, "either statement or file is given"),
        ({"connection": "a", "statement": "SELECT 1", "file": "x"}, "either statement or file is given"),
        ({"connection": "a", "statement": " -- nothing"}, "a statement that is not empty"),
        ({"connection": "a", "file": "/etc/passwd"}, "stays in it"),
        ({"connection": "a", "file": "../x"}, "stays in it"),
        ({"connection": "a", "statement": "SELECT '${secret:X}'"}, "no secret is looked up in this field"),
        ({"connection": "a", "statement": "SELECT 1", "parameters": {"a b": 1}}, "names of letters"),
        ({"connection": "a", "statement": "SELECT 1", "keep_rows": 5000}, "from 0 to 1000"),
    ],
)
def test_what_is_refused(kwargs: dict[str, Any], said: str) -> None:
    """A wrong field is named with its value and what is allowed."""
    kind = registry.find("sql")
    assert isinstance(kind, JobType)
    with pytest.raises(InvalidValue, match=re.escape(said)):
        kind.read(kwargs)


@pytest.fixture
def app() -> Celery:
    """An app with a task that returns what it was given."""
    made = Celery("types", set_as_current=False)

    @made.task(name="echo", bind=True, shared=False)
    def echo(self: Any, *args: Any, **kwargs: Any) -> Any:
        return [list(args), kwargs]

    @made.task(name="again", bind=True, shared=False)
    def again(self: Any) -> None:
        raise self.retry(exc=ValueError("not now"))

    return made


def call(app: Celery, url: str = "sqlite:///none", **kwargs: Any) -> Any:
    """The result of a job of the type `task`."""
    ctx = context_of()
    return carry_out("task", {"task": "echo", **kwargs}, app=app, ctx=ctx, connections={"shop": url})


def test_a_task(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task is called with its arguments; references to secrets in them are looked up."""
    monkeypatch.setenv("CELERY_SCHED_SECRET_A", "hunter2hunter2")
    seen: list[Any] = []
    app.tasks["echo"].run = lambda *args, **kwargs: seen.append((args, kwargs)) or "done"
    result = call(app, args=[1, "secret:A"], kwargs={"b": [{"c": "x${secret:A}y"}]})
    assert (True, "done") == (result["called"], result["result"])
    assert [((1, "hunter2hunter2"), {"b": [{"c": "xhunter2hunter2y"}]})] == seen


def test_a_task_that_asks_for_a_retry(app: Celery) -> None:
    """A retry that the task asks Celery for is a failure of the run: the job's retries take care of it."""
    with pytest.raises(ValueError, match="not now"):
        call(app, task="again")


def test_a_task_that_is_not_there(app: Celery) -> None:
    """A task that the worker does not have is named, with the nearest one."""
    with pytest.raises(InvalidValue, match=r"a task that this worker has. Did you mean echo\?"):
        call(app, task="ecko")


def test_a_row_is_keyword_arguments(app: Celery, shop: str) -> None:
    """One row's columns are keyword arguments; no row: the task is not called; two rows: the run fails."""
    query = "SELECT id, name FROM orders WHERE id <= :most ORDER BY id"
    found = {"connection": "shop", "query": query}
    assert False is call(app, shop, **found, parameters={"most": 9})["called"]
    long = "long " * 10
    do(shop, INSERT, parameters={"id": 1, "name": long})
    do(shop, INSERT, parameters={"id": 2, "name": "b"})
    result = call(app, shop, **found, parameters={"most": 1}, kwargs={"id": 0, "more": True})
    assert [[], {"id": 1, "name": long, "more": True}] == result["result"]
    with pytest.raises(WrongRows, match="more than 1 row"):
        call(app, shop, **found, parameters={"most": 2})
    rows = call(app, shop, **found, parameters={"most": 2}, pass_rows="rows")["result"][1]
    assert {"rows": [{"id": 1, "name": long}, {"id": 2, "name": "b"}]} == rows
    with pytest.raises(WrongRows, match="more than 1 row"):
        call(app, shop, **found, parameters={"most": 2}, pass_rows="rows", max_rows=1)
    json.dumps(rows)


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({}, "task None is refused: it must be given"),
        ({"task": "a", "query": "SELECT 1"}, "with query it must be given, too"),
        ({"task": "a", "connection": "b"}, "with connection it must be given, too"),
        ({"task": "celery_sched.shell"}, "Make a job of the type 'shell'"),
        ({"task": "a", "pass_rows": "row"}, "Did you mean rows?"),
        ({"task": "a", "args": {"b": 1}}, "a list"),
    ],
)
def test_what_is_refused_of_a_task(kwargs: dict[str, Any], said: str) -> None:
    """A wrong field is named with its value and what is allowed."""
    kind = registry.find("task")
    assert isinstance(kind, JobType)
    with pytest.raises(InvalidValue, match=re.escape(said)):
        kind.read(kwargs)
