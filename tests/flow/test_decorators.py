"""`@job` on functions and over tasks: what is registered, for which app, and what the function is given."""

from __future__ import annotations

import importlib
import logging
import sys
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from celery import Celery, Task, _state, shared_task

from celery_sched import context, decorators
from celery_sched.context import Context
from celery_sched.decorators import definitions, job
from celery_sched.errors import AlreadyExists, InvalidValue
from celery_sched.model import Overlap
from celery_sched.rules.upcoming import schedule_for

Load = Callable[[str, str], ModuleType]


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it, with us and (shared tasks) with Celery."""
    monkeypatch.setattr(decorators, "_registered", [])
    monkeypatch.setattr(_state, "_on_app_finalizers", set())


@pytest.fixture
def app() -> Iterator[Celery]:
    """An app whose tasks run in this process."""
    made = Celery("proj", broker="memory://", backend="cache+memory://")
    yield made
    made.close()


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Writes a module and imports it."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, text: str) -> ModuleType:
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return write


RUN = Context(
    run_id="r1",
    job="j",
    scheduled_for=datetime(2026, 1, 1, tzinfo=UTC),
    attempt=1,
    fence=7,
    is_lost=lambda: False,
    beat=lambda: None,
    log=logging.getLogger("test"),
)


def test_a_function_becomes_a_task(app: Celery, load: Load) -> None:
    """The task is named module.function, the job by default the same; policies and options arrive."""
    load(
        "sampling",
        "from celery_sched import job\n"
        "@job('*/5 * * * *', overlap='queue', expires='10m', queue='slow', kwargs={'n': 2}, max_retries=7)\n"
        "def sample(n):\n"
        "    return n * 2\n",
    )
    (found,) = definitions(app)
    assert ("sampling.sample", "sampling.sample", Overlap.QUEUE) == (found.name, found.task, found.overlap)
    assert (timedelta(minutes=10), {"queue": "slow"}) == (found.expires, found.options)
    assert (4, 7) == (
        app.tasks[found.task].apply(kwargs=dict(found.kwargs)).get(),
        app.tasks[found.task].max_retries,
    )


def test_calling_the_function_still_works(app: Celery, load: Load) -> None:
    """A decorated function can be called as before, with and without a parameter `ctx`."""
    app.set_current()
    module = load(
        "plain",
        "from celery_sched import job\n"
        "@job('@daily')\n"
        "def double(n):\n"
        "    return n * 2\n"
        "@job('@daily')\n"
        "def told(ctx, n):\n"
        "    return ctx, n\n",
    )
    assert (4, (None, 3)) == (module.double(2), module.told(3))
    assert ("mine", 3) == module.told(3, ctx="mine")


@pytest.mark.parametrize(
    ("parameters", "args", "kwargs"),
    [
        ("ctx, a, b", (1, 2), {}),
        ("a, ctx, b", (1, 2), {}),
        ("a, b, ctx", (1, 2), {}),
        ("a, b, *, ctx", (1, 2), {}),
        ("a, b, ctx=None", (1,), {"b": 2}),
        ("ctx, /, a, b", (1, 2), {}),
        ("ctx, a, b", (), {"a": 1, "b": 2}),
        ("a, ctx, b", (1,), {"b": 2}),
        ("ctx, a, *, b", (1,), {"b": 2}),
    ],
)
def test_the_context_is_given(
    app: Celery, load: Load, parameters: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """`ctx` may stand anywhere; the job's arguments are those without it, and are checked as such."""
    name = f"told_{uuid.uuid4().hex}"  # Celery keeps shared tasks in every app that is finalized
    load(
        name,
        "from celery_sched import job\n"
        f"@job('@daily')\ndef f({parameters}):\n    return ctx.fence, a, b\n"
        f"@job('@daily', bind=True)\ndef g(self, {parameters.replace(' /,', '')}):\n"
        "    return self.name, ctx.fence, a, b\n",
    )
    app.finalize()
    token = context.current.set(RUN)
    try:
        assert (7, 1, 2) == app.tasks[f"{name}.f"].apply(args, kwargs).get()
        assert (f"{name}.g", 7, 1, 2) == app.tasks[f"{name}.g"].apply(args, kwargs).get()
    finally:
        context.current.reset(token)
    app.tasks[f"{name}.f"].__header__(*args, **kwargs)
    with pytest.raises(TypeError):
        app.tasks[f"{name}.f"].__header__(*args, **kwargs, more=1)


def test_over_tasks_of_an_app(app: Celery) -> None:
    """Over a task, above `@app.task` or called, the task comes back unchanged and is not made early."""

    @job("every 10s", name="probe")
    @app.task
    def probe() -> int:
        return 1

    assert False is app.configured
    assert job("@daily", task=probe, name="probe-daily", kwargs={}) is probe
    assert job("@hourly", name="probe-hourly")(probe) is probe
    assert False is app.configured
    expected = [("probe", probe.name), ("probe-daily", probe.name), ("probe-hourly", probe.name)]
    assert expected == [(found.name, found.task) for found in definitions(app)]
    assert 1 == probe()


def test_over_made_class_based_and_shared_tasks(app: Celery) -> None:
    """Tasks that are made already, made of classes, or shared can have jobs, named after the task."""

    class Counting(Task):  # type: ignore[type-arg]
        name = "counting"

        def run(self) -> int:
            return 1

    job("@daily", task=app.register_task(Counting()))

    @job("@daily")
    @shared_task(name="shared")
    def shared() -> None: ...

    assert ["counting", "shared"] == [found.name for found in definitions(app)]


def test_each_app_has_its_own(app: Celery, load: Load) -> None:
    """A job over one app's task is not another app's; one on a function is every app's."""
    other = Celery("other", broker="memory://", set_as_current=False)

    @job("@daily", name="mine")
    @app.task(name="mine", shared=False)
    def mine() -> None: ...

    @job("@daily", name="theirs")
    @other.task(name="theirs", shared=False)
    def theirs() -> None: ...

    load("shared_jobs", "from celery_sched import job\n@job('@daily')\ndef everyones(): pass\n")
    assert ["mine", "shared_jobs.everyones"] == [found.name for found in definitions(app)]
    assert False is other.finalized
    assert ["shared_jobs.everyones", "theirs"] == [found.name for found in definitions(other)]


def test_one_name_twice_is_refused(app: Celery, load: Load) -> None:
    """A second job of one name is refused, at once where the names are known, and both places are named."""
    text = "from celery_sched import job\n@job('@daily', name='twice')\ndef f(): pass\n"
    load("first", text)
    with pytest.raises(AlreadyExists, match=r"(?s)'twice'.*first\.py:2.*second\.py:2"):
        load("second", text)
    assert ["first.f"] == [found.task for found in definitions(app)]


def test_one_name_twice_by_tasks_made_late(app: Celery) -> None:
    """Two jobs named after one lazy task are refused as soon as the task has a name."""

    @app.task
    def lazy() -> None: ...

    job("@daily", task=lazy)
    job("@hourly", task=lazy)
    with pytest.raises(
        AlreadyExists, match=r"lazy.*test_decorators\.py:\d+ and again at .*test_decorators\.py:\d+"
    ):
        definitions(app)


def test_one_line_in_a_loop_is_not_a_reload(app: Celery) -> None:
    """Jobs made in a loop need names of their own."""

    @app.task
    def swept() -> None: ...

    for zone in ("UTC", "Asia/Tokyo"):
        job("@daily", task=swept, name=f"sweep-{zone}", timezone=zone)
    assert ["sweep-Asia/Tokyo", "sweep-UTC"] == [found.name for found in definitions(app)]
    with pytest.raises(AlreadyExists):
        for _ in range(2):
            job("@daily", task=swept, name="same")


@pytest.mark.filterwarnings("ignore::celery.exceptions.DuplicateTaskNameWarning")
def test_a_module_that_is_loaded_again(app: Celery, load: Load) -> None:
    """A reload replaces what the module defined before."""
    module = load("again", "from celery_sched import job\n@job('@daily', name='x')\ndef f(): pass\n")
    path = Path(str(module.__file__))
    path.write_text(path.read_text().replace("@daily", "@hourly  "))
    importlib.reload(module)
    assert ["@hourly"] == [found.schedule for found in definitions(app)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: job("61 * * * *", name="n")(f), r"job 'n'.*61"),
        (lambda f: job("@daily", name="n", timezone="Mars/Base")(f), r"job 'n': time zone 'Mars/Base'"),
        (lambda f: job("@daily", name="n", overlap="never")(f), r"job 'n': overlap 'never'.*one of skip"),
        (
            lambda f: job("@daily", name="n", overlpa="skip")(f),
            r"job 'n': option 'overlpa'.*Did you mean overlap",
        ),
        (lambda f: job("@daily", max_retrys=3)(f), r"option of @job 'max_retrys'.*Did you mean max_retries"),
        (lambda f: job("@daily", options={"eta": 1})(f), r"message option 'eta'"),
        (lambda f: job("@daily", args=[float("nan")])(f), r"args\[0\]"),
        (lambda f: job(f), r"schedule of @job <function"),
        (lambda f: job("@daily", name="n")("proj.tasks.f"), r"job 'n': the target 'proj.tasks.f'"),
        (lambda f: job("@daily")(Task), r"not its class"),
        (
            lambda f: job("@daily", task=shared_task(f), name="n", max_retries=3),
            r"job 'n': option 'max_retries'",
        ),
    ],
)
def test_refused_where_it_stands(call: Callable[[Any], Any], message: str) -> None:
    """What is wrong in a definition is said at import, with the job's name; nothing is registered."""

    def body() -> None: ...

    with pytest.raises(InvalidValue, match=message):
        call(body)
    assert [] == decorators._registered


def test_coroutines_are_refused() -> None:
    """Celery would never await it: said at import."""

    async def body() -> None: ...

    with pytest.raises(InvalidValue, match="coroutines"):
        job("@daily")(body)


CLOSED = """BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//test//EN
BEGIN:VEVENT
UID:1
DTSTART;VALUE=DATE:20260302
DTEND;VALUE=DATE:20260304
SUMMARY:Stocktaking
END:VEVENT
END:VCALENDAR
""".replace("\n", "\r\n")


def test_a_calendar_file_lies_beside_the_code(
    app: Celery, load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker imports the job without the file; a scheduler reads it, from the folder of the code."""
    load(
        "closed",
        "from celery_sched import job\n"
        "@job('@daily', name='x', exclude=['ics:closed.ics', 'weekly:sun'])\ndef f(): pass\n",
    )
    monkeypatch.chdir("/")
    with pytest.raises(InvalidValue, match=r"there is no file .*closed\.ics"):
        definitions(app)
    (tmp_path / "closed.ics").write_text(CLOSED)
    (found,) = definitions(app)
    assert ("closed.ics", "weekly:sun") == (found.exclude[0]["ics"], found.exclude[1])
    following = schedule_for(found).next_after(datetime(2026, 2, 28, 12, tzinfo=UTC))
    assert datetime(2026, 3, 4, tzinfo=UTC) == following, "Sunday the 1st, then two days of stocktaking"


def test_several_schedules_and_a_bad_calendar(app: Celery, load: Load) -> None:
    """A list of schedules is one job; a calendar that is wrong is refused where it stands, files apart."""
    load("several", "from celery_sched import job\n@job(['@daily', 'every 8h'], name='x')\ndef f(): pass\n")
    assert ["@daily | every 8h"] == [found.schedule for found in definitions(app)]
    with pytest.raises(InvalidValue, match="Did you mean weekly"):
        load("bad", "from celery_sched import job\n@job('@daily', exclude='weekli:sun')\ndef f(): pass\n")


def test_on_lost_takes_a_task(app: Celery) -> None:
    """What puts a killed run right is named, or given as the task itself; Celery need not have made it."""

    @shared_task(name="shop.put_right")
    def put_right(**lost: Any) -> None:
        """Nothing."""

    @app.task(name="shop.of_this_app")
    def of_this_app(**lost: Any) -> None:
        """Nothing."""

    @shared_task(name="shop.target")
    def target() -> None:
        """Nothing."""

    job("@daily", task=target, name="one", on_lost=put_right)
    job("@daily", task=target, name="two", on_lost=of_this_app)
    job("@daily", task=target, name="three", on_lost="shop.elsewhere")
    job("@daily", task=target, name="four")
    found = {one.name: one.on_lost for one in definitions(app)}
    assert {
        "one": "shop.put_right",
        "two": "shop.of_this_app",
        "three": "shop.elsewhere",
        "four": None,
    } == found


def test_on_lost_takes_nothing_else() -> None:
    """A function that is no task is refused where it stands."""
    with pytest.raises(InvalidValue, match="on_lost"):

        @job("@daily", on_lost=print)
        def target() -> None:
            """Nothing."""
