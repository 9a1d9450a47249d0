"""What is published is handed out to the jobs that subscribe, and carried by runs; on every database."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from celery_sched.beat.prune import prune
from celery_sched.errors import InvalidValue
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps import deliver as deliver_step
from celery_sched.steps import gather as gather_step
from celery_sched.steps.deliver import deliver, replay
from celery_sched.steps.gather import gather
from celery_sched.steps.start import Verdict
from celery_sched.store import events, subscriptions, tables
from tests import invariants
from tests.store.world import Bench, statements, together


def carry_out(bench: Bench, status: RunStatus = RunStatus.SUCCEEDED, **outcome: Any) -> list[dict[str, Any]]:
    """Poll once, and carry out every message; the arguments that the bodies got, in order."""
    bench.scheduler.poll()
    seen = []
    for key in bench.messages():
        if bench.start(key).verdict is Verdict.YOURS:
            row = bench.row(key.id)
            seen.append(row.kwargs)
            assert bench.finish(key, status, **outcome).settled
    invariants.check(bench.database)
    return seen


def carried(bench: Bench, polls: int = 20) -> list[Any]:
    """The payloads of the events that are carried out until nothing is left to do, in order."""
    found = []
    for _ in range(polls):
        found += [kwargs["event"]["payload"] for kwargs in carry_out(bench)]
        bench.clock.advance(1)
    return found


def statuses(bench: Bench, job: str | None = None) -> Counter[str]:
    return Counter(one.status.value for one in bench.client.deliveries(job, limit=10_000))


def test_an_event_runs_the_jobs_that_subscribe(bench: Bench) -> None:
    """Each job that wants it runs once, told of it beside its own arguments; the others do not."""
    bench.client.add("all", task="t.ok", on="orders.*", kwargs={"a": 1})
    bench.client.add("new", task="t.ok", on=["orders.new", "bills.new"])
    bench.client.add("other", task="t.ok", on="orders")
    event_id = bench.client.publish("orders.new", {"order": 7}, key="7")
    bench.scheduler.poll()
    assert {"all": 1, "new": 1} == Counter(run.job for run in bench.scheduler.runs())
    keys = bench.messages()
    assert 2 == len(keys)
    told = {"id": event_id, "topic": "orders.new", "payload": {"order": 7}, "key": "7"}
    told["published_at"] = bench.clock.now.isoformat()
    rows = {row.job: row for row in (bench.row(key.id) for key in keys)}
    assert {"a": 1, "event": told} == rows["all"].kwargs
    assert {"event": told} == rows["new"].kwargs
    assert {"taken": 2} == statuses(bench)
    for key in keys:
        assert Verdict.YOURS == bench.start(key).verdict
        assert bench.finish(key).settled
    assert {"delivered": 2} == statuses(bench)
    assert [] == carried(bench, 3)
    invariants.check(bench.database)


def test_in_the_order_of_their_publication(bench: Bench) -> None:
    """A job that runs alone gets its events one after the other, the oldest first; only few runs wait."""
    bench.client.add("serial", task="t.ok", on="numbers")
    for number in range(10):
        bench.client.publish("numbers", number)
    bench.scheduler.poll()
    assert {"taken": 3, "pending": 7} == statuses(bench)
    assert 3 == len(bench.scheduler.runs())
    assert list(range(10)) == carried(bench)
    assert ({"delivered": 10}, 10) == (statuses(bench), len(bench.scheduler.runs()))


def test_a_job_that_is_concurrent_fills_its_pool(make_bench: Callable[..., Bench]) -> None:
    """As many at a time as there are slots, and as many again that wait."""
    bench = make_bench(max_concurrent_jobs=4)
    bench.client.add("many", task="t.ok", on="numbers", overlap="concurrent")
    for number in range(30):
        bench.client.publish("numbers", number)
    bench.scheduler.poll()
    assert ({"taken": 8, "pending": 22}, 4) == (statuses(bench), bench.in_flight())
    assert set(range(30)) == set(carried(bench))


def test_a_backlog_lets_others_go_first(make_bench: Callable[..., Bench]) -> None:
    """The one slot goes to the job with its first event, not to the next one of a long backlog."""
    bench = make_bench(max_concurrent_jobs=1)
    bench.client.add("backlog", task="t.ok", on="many", overlap="concurrent")
    bench.client.add("small", task="t.ok", on="few")
    for number in range(20):
        bench.client.publish("many", number)
    for _ in range(3):
        carry_out(bench)
        bench.clock.advance(1)
    bench.client.publish("few", "first")
    assert ["first"] == [kwargs["event"]["payload"] for kwargs in carry_out(bench)]


def test_what_a_filter_lets_through(bench: Bench) -> None:
    """Every field must match; a list is any of; a field that is not there matches nothing."""
    where = {"country": "DE", "total.currency": ["EUR", "CHF"], "paid": True}
    bench.client.add("job", task="t.ok", on={"topics": ["orders"], "where": where})
    good = {"country": "DE", "total": {"currency": "CHF"}, "paid": True}
    for payload in (
        good,
        {**good, "country": "AT"},
        {**good, "total": {"currency": "USD"}},
        {**good, "total": {}},
        {**good, "total": None},
        {**good, "paid": 1},
        {"total.currency": "EUR", "country": "DE", "paid": True},
        "DE",
        None,
    ):
        bench.client.publish("orders", payload)
    assert [good, {"total.currency": "EUR", "country": "DE", "paid": True}] == carried(bench)


def test_an_event_that_commits_late_is_delivered(bench: Bench) -> None:
    """Ids are given before the commit: an event with a lower id that comes later is not passed over."""
    if not bench.database.dialect.row_locks:
        pytest.skip("SQLite has one writer at a time: ids are in the order of the commits")
    bench.client.add("job", task="t.ok", on="numbers")
    engine = create_engine(bench.config.database_url)
    try:
        with engine.connect() as late, late.begin():
            first = bench.client.publish("numbers", "late", session=late)
            second = bench.client.publish("numbers", "early")
            assert first is not None and second is not None and first < second
            assert ["early"] == carried(bench)
    finally:
        engine.dispose()
    assert ["late"] == carried(bench)
    assert {"delivered": 2} == statuses(bench)


def test_the_callers_transaction_decides(bench: Bench) -> None:
    """In a session or connection of the caller's: published with its commit, and never when rolled back."""
    bench.client.add("job", task="t.ok", on="orders")
    engine = create_engine(bench.config.database_url)
    try:
        with Session(engine) as session:
            assert None is not bench.client.publish("orders", 1, session=session)
            session.commit()
        with Session(engine) as session:
            bench.client.publish("orders", 2, session=session)
            session.rollback()
        local = scoped_session(sessionmaker(engine))
        bench.client.publish("orders", 3, session=local)
        local.commit()
        local.remove()
        with engine.connect() as connection:
            bench.client.publish("orders", 4, dedupe_key="4", session=connection)
            assert None is bench.client.publish("orders", 4, dedupe_key="4", session=connection)
            connection.commit()
            bench.client.publish("orders", 5, dedupe_key="5", session=connection)
    finally:
        engine.dispose()
    assert [1, 3, 4] == carried(bench)
    with pytest.raises(InvalidValue, match="a Session or a Connection"):
        bench.client.publish("orders", 6, session="now")


def test_plain_sql_publishes(bench: Bench) -> None:
    """What docs/events.md says for each database: another language needs app, topic and payload."""
    bench.client.add("job", task="t.ok", on="orders.*")
    page = (Path(__file__).parents[2] / "docs" / "events.md").read_text()
    called = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "mariadb": "MariaDB"}
    found = re.search(rf"{called[bench.database.dialect.name]}:\n\n```sql\n(.*?)```", page, re.DOTALL)
    assert found is not None
    plain, once = (text.strip() for text in found[1].replace("'proj'", "'bench'").split(";")[:2])
    for statement in (plain, once, once):
        bench.database.run(lambda tx, now, text=statement: tx.exec_driver_sql(text))  # type: ignore[misc]
    told = [kwargs["event"] for kwargs in [*carry_out(bench), *carry_out(bench)]]
    expected = ({"order": 7}, "orders.new", None, bench.clock.now.isoformat())
    assert [expected] * 2 == [(one["payload"], one["topic"], one["key"], one["published_at"]) for one in told]


def test_published_once(bench: Bench) -> None:
    """An event with the same ``dedupe_key`` on the same topic is published once, by several at once too."""
    bench.client.add("job", task="t.ok", on="orders.*")
    sessions = [bench.session() for _ in range(4)]

    def publish(session: Any) -> Callable[[], Any]:
        return lambda: session.run(
            lambda tx, now: events.add(tx, now, "bench", "orders.new", 1, dedupe_key="once")
        )

    made = together(*(publish(session) for session in sessions))
    assert 1 == len([one for one in made if one is not None])
    assert None is bench.client.publish("orders.new", 2, dedupe_key="once")
    assert None is not bench.client.publish("orders.old", 3, dedupe_key="once")
    assert [1, 3] == carried(bench)


def test_schedulers_at_once_deliver_once(bench: Bench) -> None:
    """Several schedulers hand out and gather at the same time: each event is carried by one run."""
    bench.client.add("one", task="t.ok", on="numbers", overlap="concurrent")
    bench.client.add("two", task="t.ok", on={"topics": ["numbers"], "deliver": "batch", "size": 7})
    for number in range(60):
        bench.client.publish("numbers", number)
    sessions = [bench.session() for _ in range(3)]
    jobs = [bench.client.get(name).id for name in ("one", "two")]

    def turn(session: Any) -> Callable[[], None]:
        def work() -> None:
            session.run(lambda tx, now: deliver(tx, now, bench.config))
            for job_id in jobs:
                session.run(lambda tx, now, i=job_id: gather(tx, now, i))

        return work

    seen: Counter[tuple[str, int]] = Counter()
    for _ in range(60):
        together(*(turn(session) for session in sessions))
        for dispatch in bench.claim():
            assert Verdict.YOURS == bench.start(dispatch.key).verdict
            for event in dispatch.kwargs.get("events", [dispatch.kwargs.get("event")]):
                seen[dispatch.job, event["payload"]] += 1
            assert bench.finish(dispatch.key).settled
        bench.clock.advance(1)
        if statuses(bench) == {"delivered": 120}:
            break
    assert {"delivered": 120} == statuses(bench)
    assert {(job, number): 1 for job in ("one", "two") for number in range(60)} == seen
    invariants.check(bench.database)


def on(topics: Any, **how: Any) -> dict[str, Any]:
    return {"topics": topics, **how}


def events_of(seen: list[dict[str, Any]]) -> list[list[Any]]:
    """The payloads that each run carries."""
    return [[one["payload"] for one in kwargs.get("events", [kwargs.get("event")])] for kwargs in seen]


def test_only_the_latest_of_a_key(bench: Bench) -> None:
    """Of those that wait the newest of each key is carried, and the others are dropped for it by name."""
    bench.client.add("job", task="t.ok", on=on("prices", deliver="latest"), overlap="concurrent")
    for key, price in (("a", 1), ("b", 2), ("a", 3), (None, 4), ("a", 5), (None, 6)):
        bench.client.publish("prices", price, key=key)
    assert [[2], [5], [6]] == sorted(events_of(carry_out(bench)))
    assert {"delivered": 3, "dropped": 3} == statuses(bench)
    by_run = {bench.row(run.id).kwargs["event"]["payload"]: run.id for run in bench.scheduler.runs()}
    reasons = {one.event_id: one.reason for one in bench.client.deliveries(status="dropped")}
    assert sorted(f"a later event came first: run {by_run[n]}" for n in (5, 5, 6)) == sorted(
        str(reason) for reason in reasons.values()
    )
    bench.client.publish("prices", 7, key="a")
    assert [[7]] == events_of(carry_out(bench))


def test_many_that_wait_for_the_latest(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many wait, more than are looked at in one go: it is the latest one that is carried."""
    monkeypatch.setattr(gather_step, "LOOKED", 10)
    bench.client.add("job", task="t.ok", on=on("prices", deliver="latest"))
    bench.client.pause("job")
    for price in range(35):
        bench.client.publish("prices", price)
    bench.scheduler.poll()
    bench.client.resume("job")
    assert [34] == carried(bench)
    assert {"delivered": 1, "dropped": 34} == statuses(bench)


def test_not_before_it_is_quiet(bench: Bench) -> None:
    """With ``debounce`` the latest goes when nothing came for so long, and at the latest ``within``."""
    bench.client.add("quiet", task="t.ok", on=on("saved", debounce="10s"))
    bench.client.add("bounded", task="t.ok", on=on("saved", debounce="10s", within="25s"))
    seen: dict[str, list[tuple[int, Any]]] = {"quiet": [], "bounded": []}
    for second in range(60):
        if second % 5 == 0 and second <= 30:
            bench.client.publish("saved", second)
        bench.scheduler.poll()
        for key in bench.messages():
            row = bench.row(key.id)
            seen[row.job].append((second, row.kwargs["event"]["payload"]))
            assert Verdict.YOURS == bench.start(key).verdict
            assert bench.finish(key).settled
        bench.clock.advance(1)
    assert {"quiet": [(40, 30)], "bounded": [(25, 25), (40, 30)]} == seen


def test_several_in_one_run(bench: Bench) -> None:
    """A batch goes when it is full, or when its first event has waited long enough; in order."""
    bench.client.add(
        "job", task="t.ok", on=on("rows", deliver="batch", size=4, within="10s"), overlap="concurrent"
    )
    for row in range(10):
        bench.client.publish("rows", row, key=str(row % 3))
    assert [[0, 1, 2, 3], [4, 5, 6, 7]] == sorted(events_of(carry_out(bench)))
    bench.clock.advance(9)
    assert [] == carry_out(bench)
    bench.clock.advance(1)
    assert [[8, 9]] == events_of(carry_out(bench))
    assert ({"delivered": 10}, 3) == (statuses(bench), len(bench.scheduler.runs()))


def test_a_batch_is_not_larger_than_a_message(bench: Bench) -> None:
    """Events of 60 KiB each go a few in one run, whatever ``size`` says."""
    bench.client.add("job", task="t.ok", on=on("rows", deliver="batch", size=10), overlap="concurrent")
    for row in range(10):
        bench.client.publish("rows", str(row) * 60_000)
    assert [4, 4, 2] == sorted((len(one) for one in events_of(carry_out(bench))), reverse=True)
    assert {"delivered": 10} == statuses(bench)


def test_one_of_every_topic(bench: Bench) -> None:
    """With ``mode: all`` a run carries one event of every topic, of one key; what has no partner waits."""
    bench.client.add("ship", task="t.ok", on=on(["paid", "packed.*"], mode="all"), overlap="concurrent")
    for topic, key, payload in (
        ("paid", "a", "a paid"),
        ("paid", "b", "b paid"),
        ("packed.here", "b", "b packed"),
        ("packed.there", "c", "c packed"),
        ("paid", "b", "b paid again"),
    ):
        bench.client.publish(topic, payload, key=key)
    assert [["b paid", "b packed"]] == events_of(carry_out(bench))
    assert {"delivered": 2, "pending": 3} == statuses(bench)
    bench.client.publish("packed.here", "a packed", key="a")
    bench.client.publish("packed.here", "b packed again", key="b")
    assert [["a paid", "a packed"], ["b paid again", "b packed again"]] == sorted(events_of(carry_out(bench)))
    assert {"delivered": 6, "pending": 1} == statuses(bench)


def test_the_latest_of_every_topic(bench: Bench) -> None:
    """Both: one event of every topic, the newest of each; older ones are dropped."""
    how = on(["temperature", "pressure"], mode="all", deliver="latest")
    bench.client.add("model", task="t.ok", on=how)
    for value in (1, 2, 3):
        bench.client.publish("temperature", value)
    assert [] == carry_out(bench)
    bench.client.publish("pressure", 10)
    assert [[3, 10]] == events_of(carry_out(bench))
    assert {"delivered": 2, "dropped": 2} == statuses(bench)


def test_from_the_beginning(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job may want what was published before it subscribed, in parts; another begins with what is next."""
    monkeypatch.setattr(deliver_step, "REPLAY_BATCH", 7)
    for number in range(20):
        bench.client.publish("numbers" if number % 2 else "others", number)
    bench.scheduler.poll()
    bench.client.add("new", task="t.ok", on="numbers")
    bench.client.add("all", task="t.ok", on=on("numbers", start="beginning"))
    bench.client.publish("numbers", 21)
    seen: dict[str, list[int]] = {"new": [], "all": []}
    for _ in range(20):
        bench.scheduler.poll()
        for key in bench.messages():
            row = bench.row(key.id)
            seen[row.job].append(row.kwargs["event"]["payload"])
            assert Verdict.YOURS == bench.start(key).verdict
            assert bench.finish(key).settled
        bench.clock.advance(1)
    assert [21] == seen["new"]
    assert list(range(1, 22, 2)) == sorted(seen["all"])
    assert not bench.database.read(lambda tx, now: subscriptions.to_do(tx, "bench").replaying)
    invariants.check(bench.database)


def test_a_paused_job_s_events_wait(bench: Bench) -> None:
    """While a job is paused its deliveries wait; a job that is switched off gets none."""
    bench.client.add("paused", task="t.ok", on="numbers")
    bench.client.add("off", task="t.ok", on="numbers", enabled=False)
    bench.client.pause("paused")
    bench.client.publish("numbers", 1)
    assert [] == carried(bench, 3)
    assert ({"pending": 1}, {}) == (statuses(bench, "paused"), statuses(bench, "off"))
    assert "Deliveries of events that wait for a run: 1." in bench.client.why("paused", "now").text
    bench.client.resume("paused")
    assert [1] == carried(bench, 3)


def test_who_subscribes_no_longer_gets_nothing(bench: Bench) -> None:
    """What waits is dropped with the reason when a job loses its ``on``, a topic of it, or is deleted."""
    for name in ("unsubscribed", "other topic", "deleted"):
        bench.client.add(name, task="t.ok", on=["numbers", "others"])
        bench.client.pause(name)
    bench.client.publish("numbers", 1)
    bench.scheduler.poll()
    assert {"pending": 3} == statuses(bench)
    bench.client.edit("unsubscribed", on=None)
    bench.client.edit("other topic", on="others")
    bench.client.delete("deleted")
    for name in ("unsubscribed", "other topic"):
        bench.client.resume(name)
    assert [] == carried(bench, 3)
    reasons = {one.job: (one.status.value, one.reason) for one in bench.client.deliveries()}
    assert {
        "unsubscribed": ("dropped", "its job does not subscribe to events any more"),
        "other topic": ("dropped", "its job does not subscribe to this topic any more"),
        None: ("dropped", "job 'deleted' was deleted"),
    } == reasons
    bench.client.publish("numbers", 2)
    assert [] == carried(bench, 3)


def test_handed_out_in_the_moment_of_a_removal(bench: Bench) -> None:
    """A delivery for a subscription that is gone waits for nobody: the pruner drops it."""
    bench.client.add("job", task="t.ok", on="numbers")
    bench.client.pause("job")
    bench.client.publish("numbers", 1)
    bench.scheduler.poll()
    [made] = bench.client.deliveries()
    bench.database.run(lambda tx, now: tx.execute(tables.subscription.delete()))
    prune(bench.scheduler.runtime)
    [found] = bench.client.deliveries()
    assert (made.id, "dropped") == (found.id, found.status.value)


def test_dead_letters(bench: Bench) -> None:
    """An event whose run fails as often as it may is dead, with the reason; retried, it is the same run."""
    bench.client.add("job", task="t.ok", on="numbers", retries=1, retry_delay="1s")
    bench.client.publish("numbers", 1)
    for _ in range(3):
        carry_out(bench, RunStatus.FAILED, error="Traceback\nValueError: no such number")
        bench.clock.advance(2)
    [dead] = bench.client.deliveries(status="dead")
    run = bench.client.get_run(dead.run_id)
    assert ("failed", 2) == (run.status, run.attempt)
    reason = f"run {run.id} is failed: given up after 1 retry; ValueError: no such number"
    assert reason == dead.reason
    assert (1, True) == (bench.client.status().deliveries_dead, dead.finished_at is not None)
    why = bench.client.why("job", "now")
    assert "Deliveries of events that are dead, and need somebody: 1." in why.text
    assert "sched deliveries --job job --status dead" == why.next_steps[-1]
    done = bench.client.retry_deliveries([dead.id])
    assert ((dead.id,), ()) == (done.done, done.refused)
    assert {"taken": 1} == statuses(bench)
    assert [1] == carried(bench, 3)
    again = bench.client.get_run(run.id)
    assert ("succeeded", 3, 1) == (again.status, again.attempt, len(bench.scheduler.runs()))
    assert {"delivered": 1} == statuses(bench)
    refused = bench.client.retry_deliveries([dead.id])
    assert ((), ((dead.id, "it is delivered"),)) == (refused.done, refused.refused)


def test_a_dead_letter_whose_run_is_pruned(bench: Bench) -> None:
    """Retried, it gets a run anew, with the same arguments."""
    bench.client.add("job", task="t.ok", on="numbers", retries=0)
    bench.client.publish("numbers", 1)
    carry_out(bench, RunStatus.FAILED)
    bench.database.run(lambda tx, now: tx.execute(tables.run.delete()))
    bench.set_job("job", run_count=0, failure_count=0, failures_in_row=0)
    done = bench.client.retry_deliveries(job="job")
    assert 1 == len(done.done)
    assert [1] == carried(bench, 3)
    assert {"delivered": 1} == statuses(bench)


def test_dropped_by_hand(bench: Bench) -> None:
    """What waits or is dead can be given up; what a run carries goes with the run, and is dropped with it."""
    bench.client.add("job", task="t.ok", on="numbers")
    for number in range(5):
        bench.client.publish("numbers", number)
    bench.scheduler.poll()
    assert {"taken": 3, "pending": 2} == statuses(bench)
    [taken, *_] = bench.client.deliveries(status="taken")
    refused = bench.client.drop_deliveries([taken.id], by="me")
    assert ((), ((taken.id, f"it is taken; cancel run {taken.run_id}"),)) == (refused.done, refused.refused)
    assert 2 == len(bench.client.drop_deliveries(job="job", reason="too old", by="me").done)
    assert {"taken": 3, "dropped": 2} == statuses(bench)
    assert {"dropped by me: too old"} == {one.reason for one in bench.client.deliveries(status="dropped")}
    assert taken.run_id is not None
    queued = [run for run in bench.scheduler.runs() if run.status == "queued"]
    bench.client.cancel(queued[0].id, by="me", reason="not this one")
    [found] = [one for one in bench.client.deliveries() if one.run_id == queued[0].id]
    assert ("dropped", f"run {queued[0].id} is cancelled: stopped by me: not this one") == (
        found.status.value,
        found.reason,
    )
    bench.client.retry_deliveries([found.id])
    carried(bench, 5)
    assert {"delivered": 3, "dropped": 2} == statuses(bench)


def test_a_lost_run_is_queued_again(bench: Bench) -> None:
    """A worker dies: a new attempt of the same run, at once, never two at a time; no retry is used up."""
    bench.client.add("job", task="t.ok", on="numbers", retries=0)
    bench.client.publish("numbers", 1)
    bench.scheduler.poll()
    [key] = bench.messages()
    assert Verdict.YOURS == bench.start(key).verdict
    for _ in range(2):  # a scheduler is there all along
        bench.clock.advance(29)
        bench.scheduler.poll()
    bench.clock.advance(3)
    bench.scheduler.poll()
    assert not bench.finish(key).settled
    [again] = bench.messages()
    assert (key.id, 2, {"taken": 1}) == (again.id, again.attempt, statuses(bench))
    row = bench.row(key.id)
    assert 1 == row.kwargs["event"]["payload"]
    assert Verdict.YOURS == bench.start(again).verdict
    assert bench.finish(again).settled
    assert ({"delivered": 1}, 1) == (statuses(bench), len(bench.scheduler.runs()))
    invariants.check(bench.database)


def test_a_circle_ends(make_bench: Callable[..., Bench]) -> None:
    """Two jobs that run for each other's results stop after ``sched_max_hops``; the last event is dead."""
    bench = make_bench(max_hops=4)
    bench.client.add("ping", task="t.ok", on="pings", publishes="pongs")
    bench.client.add("pong", task="t.ok", on="pongs", publishes="pings")
    bench.client.publish("pings", "begin")
    for _ in range(12):
        carry_out(bench, result='{"n": 1}')
        bench.clock.advance(1)
    assert 5 == len(bench.scheduler.runs())
    [dead] = bench.client.deliveries(status="dead")
    assert "cycle: 5 jobs in a row were run for an event, sched_max_hops is 4" == dead.reason
    assert [0, 1, 2, 3, 4, 5] == [event.hops for event in reversed(bench.client.events())]


def test_what_a_run_publishes_at_its_end(bench: Bench) -> None:
    """A run that succeeds publishes job, run, instant and result; one that fails, or stops, does not."""
    bench.client.add("accounts", task="t.ok", schedule="every 1h", publishes="accounts.done")
    bench.client.add("reader", task="t.ok", on="accounts.*")
    bench.client.run("accounts")
    carry_out(bench, RunStatus.FAILED)
    done = bench.client.run("accounts")
    [_] = carry_out(bench, result='{"rows": 3}')
    [event] = bench.client.events()
    payload = {"job": "accounts", "run_id": done.id, "result": {"rows": 3}}
    payload["scheduled_for"] = done.scheduled_for.isoformat()
    assert ("accounts.done", payload, done.id, 1) == (event.topic, event.payload, event.run_id, event.hops)
    assert [payload] == carried(bench, 3)


def test_active_runs_for_events_count(bench: Bench) -> None:
    """An occurrence that comes while the job runs for an event is skipped, as its overlap says."""
    bench.client.add("job", task="t.ok", schedule="every 10s", on="numbers")
    bench.client.publish("numbers", 1)
    bench.scheduler.poll()
    bench.clock.advance(10)
    bench.scheduler.poll()
    [skipped] = bench.client.runs("job", status="skipped")
    assert str(skipped.reason).startswith("overlap: run ")
    assert [1] == events_of(carry_out(bench))[0]


def test_events_are_pruned(make_bench: Callable[..., Bench]) -> None:
    """What was handed out long ago goes, with its deliveries, unless one is still on its way."""
    bench = make_bench(keep_events="1d")
    bench.client.add("job", task="t.ok", on="numbers")
    bench.client.add("slow", task="t.ok", on="slow")
    bench.client.pause("slow")
    for topic in ("numbers", "slow", "nobody"):
        bench.client.publish(topic, topic)
    carried(bench, 2)
    bench.clock.advance(86_390)
    prune(bench.scheduler.runtime)
    assert 3 == len(bench.client.events())
    bench.client.publish("slow", "new", dedupe_key="x")
    bench.clock.advance(20)
    prune(bench.scheduler.runtime)
    assert ["new", "slow"] == [event.payload for event in bench.client.events()]
    assert {"pending": 1} == statuses(bench)
    bench.client.drop_deliveries(job="slow")
    prune(bench.scheduler.runtime)
    assert (["new"], {}) == ([event.payload for event in bench.client.events()], statuses(bench))


def test_a_subscription_that_plain_sql_broke(bench: Bench) -> None:
    """It gets nothing, and says so in the log; the others get theirs."""
    bench.client.add("broken", task="t.ok", on="numbers")
    bench.client.add("job", task="t.ok", on="numbers")
    bench.set_job("broken", on={"topics": 5})
    bench.client.publish("numbers", 1)
    assert [1] == carried(bench, 3)
    assert {} == statuses(bench, "broken")


def test_an_idle_poll_writes_nothing(bench: Bench) -> None:
    """With subscriptions and nothing to do, a poll only reads."""
    bench.client.add("job", task="t.ok", on="numbers")
    bench.client.publish("numbers", 1)
    carried(bench, 3)
    with statements(bench.database) as seen:
        bench.scheduler.poll()
    assert [] == [one for one in seen if not one.lstrip().upper().startswith("SELECT") and "BEGIN" not in one]
    assert [] == [one for one in seen if "FOR UPDATE" in one]


def test_an_event_that_somebody_deleted(bench: Bench) -> None:
    """Its delivery is dropped with the reason, and keeps none of the others waiting."""
    bench.client.add("each", task="t.ok", on="numbers")
    bench.client.add("batch", task="t.ok", on=on("numbers", deliver="batch", within="1s"))
    for name in ("each", "batch"):
        bench.client.pause(name)
    ids = [bench.client.publish("numbers", number) for number in range(3)]
    bench.scheduler.poll()
    gone = tables.event.delete().where(tables.event.c.id == ids[0])
    bench.database.run(lambda tx, now: tx.execute(gone))
    for name in ("each", "batch"):
        bench.client.resume(name)
    bench.clock.advance(1)
    seen = [payloads for _ in range(4) for payloads in events_of(carry_out(bench))]
    assert [[1], [1, 2], [2]] == sorted(seen)
    assert {"its event was deleted"} == {one.reason for one in bench.client.deliveries(status="dropped")}
    assert {"delivered": 4, "dropped": 2} == statuses(bench)


def test_older_events_of_plain_sql(bench: Bench) -> None:
    """Replayed before they are handed out: they are delivered once, whenever they say they were published."""
    plain = "INSERT INTO sched_event (app, topic, payload) VALUES ('bench', 'numbers', '1')"
    bench.database.run(lambda tx, now: tx.exec_driver_sql(plain))
    bench.client.add("job", task="t.ok", on=on("numbers", start="beginning"))
    done = bench.database.run(lambda tx, now: replay(tx, now, bench.config))
    assert 1 == done.deliveries
    job_id = bench.client.get("job").id
    assert 1 == bench.database.run(lambda tx, now: gather(tx, now, job_id)).runs
    assert [1] == carried(bench, 4)
    assert {"delivered": 1} == statuses(bench)
