"""`sched publish`, `events`, `deliveries`, and jobs that subscribe, as people and programs use them."""

from __future__ import annotations

from typing import Any

from celery.app.base import Celery

from celery_sched.testing import ManualScheduler
from tests.e2e.test_cli_control import Sched, data, sched

__all__ = ["sched"]


def poll(here: Celery) -> None:
    """A scheduler hands out what was published."""
    scheduler = ManualScheduler(here)
    try:
        scheduler.poll()
    finally:
        scheduler.close()


def app() -> Celery:
    import sys

    from tests.e2e.test_cli_control import APP

    found: Celery = sys.modules[APP].app
    return found


def subscribe(sched: Sched, name: str, *options: str) -> Any:
    return sched("jobs", "add", name, "--task", "celery.backend_cleanup", *options)


def test_from_a_publication_to_a_dead_letter(sched: Sched) -> None:
    """Published, listed, handed out, dropped and sent again; each command says what it did."""
    added = subscribe(sched, "bill", "--on", "orders.*,bills.new", "--publishes", "bills.done")
    assert "added bill: runs on orders.*, bills.new (active)\n" == added.stdout
    shown = data(sched("jobs", "show", "bill", "--json"))
    assert ("none", {"topics": ["orders.*", "bills.new"]}, "bills.done", 5) == (
        *(shown["schedule"], shown["on"], shown["publishes"], shown["retries"]),
    )
    assert "on orders.*, bills.new" in sched("jobs").stdout
    assert (
        "published 1 on orders.new\n"
        == sched("publish", "orders.new", "--payload", '{"order": 7}', "--dedupe-key", "7").stdout
    )
    assert (
        "orders.new: an event with the dedupe key '7' is there already\n"
        == sched("publish", "orders.new", "--dedupe-key", "7").stdout
    )
    made = data(sched("publish", "shop.closed", "--key", "x", "--json"))
    assert ("shop.closed", True, True) == (made["topic"], made["published"], made["id"] > 1)
    assert [True, True] == ["  waits  " in line for line in _lines(sched("events").stdout)]
    assert (2, 0, 0) == _standing(sched)
    sched("pause", "bill")
    poll(app())
    assert [] == data(sched("events", "--waiting", "--json"))
    [event] = data(sched("events", "--topic", "orders.*", "--json"))
    assert ({"order": 7}, {"pending": 1}) == (event["payload"], event["deliveries"])
    assert (0, 1, 0) == _standing(sched)
    [delivery] = data(sched("deliveries", "list", "--job", "bill", "--status", "pending", "--json"))
    assert ("bill", "orders.new", 1, None) == (
        *(delivery["job"], delivery["topic"], delivery["event_id"], delivery["run_id"]),
    )
    beginning = delivery["id"][:8]
    assert f"{delivery['id']} is dropped\n" == sched("deliveries", "drop", beginning, "--reason", "no").stdout
    [line] = _lines(sched("deliveries").stdout)
    assert ("dropped", True) == (line.split()[4], ": no" in line)
    refused = sched("deliveries", "drop", beginning, code=2)
    assert ("", True) == (refused.stdout, "it is dropped" in refused.stderr)
    assert f"{delivery['id']} goes its way again\n" == sched("deliveries", "retry", beginning).stdout
    done = data(sched("deliveries", "drop", "--job", "bill", "--json"))
    assert {"done": [delivery["id"]], "refused": {}} == done
    assert "Job bill has no such delivery." in sched("deliveries", "retry", "--job", "bill").stderr


def test_what_is_refused(sched: Sched) -> None:
    """With the option, the value and what is allowed; nothing on stdout, and exit code 2."""
    subscribe(sched, "bill", "--on", '{"topics": "orders.*", "debounce": "30s"}')
    for arguments, said in (
        (("publish", "orders new"), "parts of letters"),
        (("publish", "orders.*"), "A pattern is for those who subscribe"),
        (("publish", "orders", "--payload", "{"), "It cannot be read"),
        (("jobs", "add", "x", "--task", "t"), "Or give the events that it runs for (on)"),
        (("jobs", "edit", "bill", "--on", "{"), "It cannot be read"),
        (("jobs", "edit", "bill", "--on", '{"topic": "a"}'), "Did you mean topics?"),
        (("jobs", "edit", "bill", "--overlap", "replace"), "not with events"),
        (("deliveries", "retry"), "name one DELIVERY or more, or give --job"),
        (("deliveries", "retry", "abcd"), "there is no delivery 'abcd'"),
        (("deliveries", "--job", "nobody"), "there is no job 'nobody'"),
        (("deliveries", "--status", "dread"), "'dead'"),
    ):
        answer = sched(*arguments, code=2)
        assert ("", True) == (answer.stdout, said in answer.stderr), (arguments, answer.output)
    edited = data(sched("jobs", "edit", "bill", "--on", "none", "--schedule", "@daily", "--json"))
    assert (None, "@daily") == (edited["on"], edited["schedule"])


def _lines(table: str) -> list[str]:
    """The rows of a table."""
    return table.splitlines()[1:]


def _standing(sched: Sched) -> tuple[int, int, int]:
    found = data(sched("status", "--json", code=1))
    return found["events_waiting"], found["deliveries_pending"], found["deliveries_dead"]
