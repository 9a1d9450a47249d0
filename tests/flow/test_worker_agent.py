"""The types ``agent`` and ``files`` on a real worker."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from sqlalchemy import select

from celery_sched.store.tables import event
from tests.flow.worker_world import World
from tests.jobtypes import model_server as server

KEY = "sk-a-key-of-the-test"


def test_agent_and_sensor(make_world: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """A silent model costs its deadline, for which heartbeats keep the run alive; no key is shown; an answer
    stands in the history; a file that a sensor finds is an event.
    """
    monkeypatch.setenv("CELERY_SCHED_SECRET_MODEL_KEY", KEY)
    world: World = make_world(sched_http_allowed_hosts=["127.0.0.1"], sched_max_runtime=2)
    worker = world.worker("-c", "3")
    script = {
        "silent": [server.stalls],
        "echo": [server.error(401, message=f"no: {KEY}")],
        "good": [server.streams("hi")],
    }
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    (inbox / "a.csv").write_text("x")
    with server.site(script) as site:
        given = {"base_url": site.url, "api_key": "secret:MODEL_KEY", "prompt": "Hi", "deadline": "5s"}
        silent, echo, good = (
            world.run("celery_sched.agent", kwargs={**given, "models": [name]}) for name in script
        )
        files = world.run(
            "celery_sched.files",
            kwargs={"topic": "inbox", "folder": str(inbox), "settle": "200ms", "start": "beginning"},
        )
        assert ("succeeded", "hi") == (
            world.wait(good).status,
            json.loads(world.wait(good).result)["content"],
        )
        failed = world.wait(silent)
        refused = world.wait(echo)
    assert ("failed", "failed") == (failed.status, refused.status)
    assert "no answer from the models: the deadline allows" in str(failed.error)
    assert re.search(r"1\. silent, \d+\.\d s", str(failed.error))
    assert "no: ***" in str(refused.error)
    assert "succeeded" == world.wait(files).status
    rows = world.database.read(lambda tx, now: tx.execute(select(event)).all())
    assert [("inbox", "a.csv", files)] == [(row.topic, row.payload["name"], row.run_id) for row in rows]
    assert KEY not in worker.text() + str(rows)
