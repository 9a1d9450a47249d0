"""The stand-alone app and `setup()`: where settings come from, what is touched, and when."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from celery import Celery

import celery_sched
from celery_sched import runtime
from celery_sched.app import make_folders, standalone
from celery_sched.beat import Scheduler
from celery_sched.errors import InvalidConfig

Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs Python code in a process of its own, in an empty folder, and returns what it printed."""

    def start(code: str, *, fails: bool = False, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            cwd=tmp_path,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment},
            text=True,
            capture_output=True,
            timeout=120,
        )
        assert fails == bool(done.returncode), done.stderr
        return done.stderr if fails else done.stdout.strip()

    return start


def test_a_library_import_does_nothing(run: Run, tmp_path: Path) -> None:
    """`import celery_sched` imports no Celery, makes no app and touches no file."""
    assert "False" == run("import sys, celery_sched; print('celery' in sys.modules)")
    assert [] == list(tmp_path.iterdir())


def test_embedded_defaults_touch_no_file(run: Run, tmp_path: Path) -> None:
    """With neither configuration nor variables: SQLite and a broker of files, made when they are used."""
    code = (
        "from celery_sched import app; from celery_sched.runtime import of\n"
        "c = app.conf\n"
        "print(app.main, c.broker_url, c.broker_transport_options['folder'],"
        " c.result_backend.partition('+')[2], of(app).config.database_url, sep='\\n')"
    )
    home = tmp_path / ".celery_sched"
    expected = [
        "celery_sched",
        "sched-filesystem://localhost//",
        f"{home}/broker",
        f"file://{home}/results",
        f"sqlite:///{home}/sched.sqlite3",
    ]
    assert expected == run(code).splitlines()
    assert [] == list(tmp_path.iterdir())


SHOW = (
    "from celery_sched import app; from celery_sched.runtime import of\n"
    "config = of(app).config\n"
    "print(app.conf.broker_url, app.conf.result_backend, config.database_url, config.max_concurrent_jobs)"
)


def test_environment_variables(run: Run) -> None:
    """CELERY_BROKER_URL, CELERY_RESULT_BACKEND and CELERY_SCHED_* configure the app."""
    shown = run(
        SHOW,
        CELERY_BROKER_URL="redis://b/0",
        CELERY_RESULT_BACKEND="redis://r/1",
        CELERY_SCHED_DATABASE_URL="postgresql+psycopg://u@h/d",
        CELERY_SCHED_MAX_CONCURRENT_JOBS="7",
    )
    assert "redis://b/0 redis://r/1 postgresql+psycopg://u@h/d 7" == shown


def test_celeryconfig(run: Run, tmp_path: Path) -> None:
    """`celeryconfig.py` in the current folder configures the app, and wins over CELERY_SCHED_*."""
    (tmp_path / "celeryconfig.py").write_text(
        "broker_url = 'redis://file/0'\nsched_database_url = 'sqlite:////tmp/x.sqlite3'\n"
        "sched_max_concurrent_jobs = 3\ntask_acks_late = False\n"
    )
    code = SHOW + "\nprint(app.conf.task_acks_late, app.conf.worker_prefetch_multiplier)"
    shown = run(code, CELERY_SCHED_MAX_CONCURRENT_JOBS="7").splitlines()
    assert ["redis://file/0 None sqlite:////tmp/x.sqlite3 3", "False 1"] == shown


def test_every_default_gives_way(run: Run, tmp_path: Path) -> None:
    """Whatever the stand-alone app sets by itself, `celeryconfig.py` may set otherwise."""
    (tmp_path / "celeryconfig.py").write_text(
        "from celery_sched.app import DEFAULTS\n"
        "globals().update({key: 'Europe/Berlin' for key in DEFAULTS})\n"
        "broker_transport_options = {'folder': '/mine'}\nresult_backend = 'rpc://'\n"
    )
    code = (
        "from celery_sched import app; from celery_sched.app import DEFAULTS\n"
        "c = app.conf\n"
        "print({c[key] for key in DEFAULTS}, c.broker_transport_options, c.result_backend)"
    )
    assert "{'Europe/Berlin'} {'folder': '/mine'} rpc://" == run(code)


def test_celeryconfig_may_keep_the_embedded_broker(run: Run, tmp_path: Path) -> None:
    """A configuration that names only the home moves all of the embedded default there."""
    (tmp_path / "celeryconfig.py").write_text("sched_home = 'elsewhere'\n")
    code = "from celery_sched import app\nprint(app.conf.broker_transport_options['folder'])"
    assert f"{tmp_path}/elsewhere/broker" == run(code)


def test_another_configuration_module(run: Run, tmp_path: Path) -> None:
    """CELERY_CONFIG_MODULE (what `celery --config` sets) names another module."""
    (tmp_path / "production.py").write_text("broker_url = 'redis://production/0'\n")
    code = "import sys; sys.path.insert(0, '')\n" + SHOW
    assert run(code, CELERY_CONFIG_MODULE="production").startswith("redis://production/0")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"celeryconfig.py": "import nothing_of_that_name"}, "celeryconfig.py) cannot be imported"),
        ({"tasks/__init__.py": "import nothing_of_that_name"}, "tasks cannot be imported"),
        ({"tasks/__init__.py": "", "tasks/demo.py": "1 / 0"}, "tasks cannot be imported: ZeroDivisionError"),
        ({"tasks.py": "from celery_sched import job\n@job('61 * * * *')\ndef f(): pass"}, "job 'tasks.f'"),
    ],
)
def test_broken_files_are_named(run: Run, tmp_path: Path, files: dict[str, str], message: str) -> None:
    """A configuration or jobs that cannot be imported are named; nothing starts without them."""
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    said = run("from celery_sched import app; app.loader.import_default_modules()", fails=True)
    assert message in said.splitlines()[-1], said


def test_jobs_of_this_folder(run: Run, tmp_path: Path) -> None:
    """Jobs in the package `tasks` of the current folder are imported when a worker or scheduler starts."""
    (tmp_path / "tasks.py").write_text("from celery_sched import job\n@job('@daily')\ndef f(): return 5\n")
    code = (
        "import sys; from celery_sched import app; from celery_sched.decorators import definitions\n"
        "print('tasks' in sys.modules)\n"
        "app.loader.import_default_modules()\n"
        "print([d.name for d in definitions(app)], app.tasks['tasks.f']())"
    )
    assert ["False", "['tasks.f'] 5"] == run(code).splitlines()


def test_every_module_of_the_package_tasks(run: Run, tmp_path: Path) -> None:
    """A file put into the package `tasks` is found without a line elsewhere; `__main__` is not run."""
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "__init__.py").touch()
    (tmp_path / "tasks" / "__main__.py").write_text("raise SystemExit('a program')\n")
    (tmp_path / "tasks" / "demo.py").write_text(
        "from celery_sched import job\n@job('@daily')\ndef collect(): return 5\n"
    )
    code = (
        "from celery_sched import app; from celery_sched.decorators import definitions\n"
        "app.loader.import_default_modules()\n"
        "print([d.name for d in definitions(app)], app.tasks['tasks.demo.collect']())"
    )
    assert "['tasks.demo.collect'] 5" == run(code)


@pytest.mark.parametrize("name", ["celery_sched", "celery_sched.app"])
def test_celery_finds_the_app(name: str) -> None:
    """`-A celery_sched` finds the stand-alone app, also after an import of the module celery_sched.app."""
    from celery.app.utils import find_app

    assert find_app(name) is standalone()
    assert celery_sched.celery is standalone()


def test_public_names_are_objects(run: Run) -> None:
    """`client` and `app` are the client and the app, not the modules of these names, whatever came first."""
    show = "; from celery_sched import client, app; print(client.add.__name__, app.main)"
    assert "add celery_sched" == run("import celery_sched" + show)
    assert "add celery_sched" == run("import celery_sched.client, celery_sched.app" + show)


def test_a_wrong_setting_is_refused_when_it_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """setup() reads no settings; a wrong one is refused, by name, when the scheduler needs it."""
    app = Celery("proj", set_as_current=False)
    celery_sched.setup(app)
    assert False is app.configured
    app.conf.sched_lease = "soon"
    with pytest.raises(InvalidConfig, match="sched_lease 'soon'"):
        runtime.of(app)


@pytest.mark.parametrize("when", ["first", "configured", "finalized"])
def test_setup_at_any_time(when: str) -> None:
    """setup() works before the app is configured, after, and after it is finalized; and again."""
    app = Celery("proj", broker="memory://", set_as_current=False)
    if when != "first":
        app.config_from_object({"timezone": "Europe/Berlin"})
        assert "Europe/Berlin" == app.conf.timezone
    if when == "finalized":
        app.finalize()
    celery_sched.setup(app)
    celery_sched.setup(app)
    if when == "first":
        app.config_from_object({"timezone": "Europe/Berlin"})
    assert "Europe/Berlin" == app.conf.timezone
    assert "pong" == app.tasks["celery_sched.ping"]()
    assert "pong" == app.tasks["celery_sched.ping"](event={"topic": "orders.new"})


def test_setup_leaves_settings_alone() -> None:
    """Somebody else's app keeps its settings and Celery's defaults; its beat_schedule is not taken over."""
    app, plain = (Celery(name, broker="memory://", set_as_current=False) for name in ("proj", "plain"))
    app.config_from_object({"worker_prefetch_multiplier": 2})
    plain.config_from_object({"worker_prefetch_multiplier": 2})
    celery_sched.setup(app)
    assert dict(plain.conf.items()) == dict(app.conf.items())


def test_setup_takes_an_app() -> None:
    """Anything that is no Celery app is refused at once."""
    with pytest.raises(TypeError, match="takes a Celery app, not 'proj'"):
        celery_sched.setup("proj")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["sched", "celery_sched.beat:Scheduler"])
def test_beat_finds_the_scheduler(name: str) -> None:
    """`beat -S sched` and the full name are our scheduler."""
    from celery.beat import Service
    from celery.utils.imports import load_extension_class_names
    from kombu.utils.imports import symbol_by_name

    namespace = Service.get_scheduler.__defaults__[-1]  # type: ignore[index]
    aliases = dict(load_extension_class_names(namespace))
    assert symbol_by_name(name, aliases=aliases) is Scheduler


def test_folders_are_made_at_start(tmp_path: Path) -> None:
    """What the embedded broker needs is made when a worker or scheduler starts, for the apps that use it."""
    from celery_sched.transport import embedded_broker

    ours = Celery("ours", set_as_current=False)
    ours.conf.update({**embedded_broker(tmp_path / "home"), "sched_home": str(tmp_path / "home")})
    other = Celery("other", broker="memory://", set_as_current=False)
    other.conf.sched_home = str(tmp_path / "other")
    make_folders(other)
    assert [] == list(tmp_path.iterdir())
    make_folders(ours)
    assert True is (tmp_path / "home" / "broker").is_dir()
