"""Which job types there are: our own, those of packages, and what becomes of a package that is broken."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

import celery_sched
from celery_sched import config, runtime
from celery_sched.doctor import jobtypes as doctor
from celery_sched.errors import InvalidValue, SchedulerError
from celery_sched.jobtypes import registry
from celery_sched.jobtypes.base import JobType
from celery_sched.model import JobDefinition
from celery_sched.rules.definition import checked

ROOT = Path(__file__).parents[2]
Package = Callable[..., None]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    """Installs a package with an entry point: what `pip` would leave on disk."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(name: str, target: str, code: str = "") -> None:
        module = target.partition(":")[0]
        (tmp_path / f"{module}.py").write_text(code)
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{name} = {target}\n")
        registry.forget()

    yield install
    monkeypatch.undo()
    registry.forget()


def add(**kwargs: Any) -> JobDefinition:
    """A job as the client would add it."""
    return checked(name="j", schedule="every 1h", **kwargs)


def test_our_own() -> None:
    """Every type of ours can be imported, has a line of description, and docs for each field."""
    assert {"http", "shell", "sql", "task", "agent"} <= set(registry.names())
    assert [] == [one for one in registry.broken() if one.name in registry.BUILT_IN]
    for kind in registry.types():
        assert kind.description
        assert "\n" not in kind.description
        assert [] == [line for line in registry.reference(kind).splitlines() if "|  |" in line[-4:]]


def test_a_definition_is_checked() -> None:
    """A wrong field is refused where the job is defined, naming job, type, field and what is allowed."""
    with pytest.raises(InvalidValue) as caught:
        add(task="celery_sched.http", kwargs={"url": "https://example.com", "timeot": "5s"})
    said = str(caught.value)
    assert said.startswith("job 'j': http: field 'timeot' is refused")
    assert "Did you mean timeout?" in said
    with pytest.raises(InvalidValue, match="kwargs only"):
        add(task="celery_sched.http", args=["https://example.com"])
    kwargs = {"url": "https://example.com", "timeout": "1m30s"}
    assert kwargs == add(task="celery_sched.http", kwargs=kwargs).kwargs  # as it was written


def test_a_task_of_no_type_is_its_own_business() -> None:
    """Arguments of tasks that are no types, or of a type that is not installed here, are not looked at."""
    for task in ("shop.http", "celery_sched.ping", "celery_sched.nobodys"):
        assert {"x": 1} == add(task=task, kwargs={"x": 1}).kwargs


BROKEN = {
    "raises": ("1 / 0", "ZeroDivisionError"),
    "missing": ("import nothing_of_that_name", "ModuleNotFoundError"),
    "no class": ("Kind = 5", "a subclass of"),
    "another name": (
        "from celery_sched.jobtypes.base import JobType\n"
        "class Kind(JobType):\n    name = 'other'\n    def run(self, config, ctx): ...\n",
        "The entry point and the class say the same name",
    ),
    "no run": (
        "from celery_sched.jobtypes.base import JobType\nclass Kind(JobType):\n    name = 'bad'\n",
        "TypeError",
    ),
    "no config": (
        "from celery_sched.jobtypes.base import JobType\n"
        "class Kind(JobType):\n    name = 'bad'\n    def run(self, config, ctx): ...\n",
        "a frozen dataclass",
    ),
    "exits": ("raise SystemExit(3)", "SystemExit"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_package(
    package: Package, kind: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """It is named in the log and by doctor; other types, and definitions of its own jobs, go on."""
    code, said = BROKEN[kind]
    package("bad", f"broken_{kind.replace(' ', '_')}:Kind", code)
    app = Celery("x", set_as_current=False)
    celery_sched.setup(app)
    assert "celery_sched.bad" in app.tasks
    with caplog.at_level(logging.ERROR):
        assert "http" in [one.name for one in registry.types()]
    [found] = registry.broken()
    assert (found.name, True, True) == ("bad", said in found.why, "broken_" in found.origin)
    assert [True] == ["'bad'" in record.getMessage() for record in caplog.records]
    assert {"x": 1} == add(task="celery_sched.bad", kwargs={"x": 1}).kwargs
    made = runtime.make(config.load({"sched_home": str(tmp_path)}, "x", {}))
    [finding] = doctor.types(made, [add(task="celery_sched.bad")])
    assert ("warning", True) == (finding.level, said in finding.message)
    made.close()


def test_a_package_cannot_take_a_name_of_ours(package: Package, caplog: pytest.LogCaptureFixture) -> None:
    """A package that calls its type `http` is left out and named."""
    with caplog.at_level(logging.ERROR):
        package("http", "taker:Kind")
        found = registry.find("http")
    assert isinstance(found, JobType)
    assert type(found).__module__ == "celery_sched.jobtypes.http"
    assert "job type 'http' of taker (taker:Kind) is left out" in caplog.text


def test_only_the_scheduler_carries_out_a_type() -> None:
    """A message that somebody sends by hand runs nothing: no command without a job that has it."""
    app = Celery("x", set_as_current=False)
    celery_sched.setup(app)
    with pytest.raises(SchedulerError, match="is carried out for a job only"):
        app.tasks["celery_sched.shell"](command=["/bin/true"])


def test_what_doctor_says_of_jobs(tmp_path: Path) -> None:
    """Jobs that will fail with the settings of this process, and rows that are wrong, are told."""
    made = runtime.make(config.load({"sched_home": str(tmp_path)}, "x", {}))
    good = add(task="celery_sched.http", kwargs={"url": "https://example.com"})
    assert [] == doctor.types(made, [good])
    off = add(task="celery_sched.shell", kwargs={"command": ["/bin/true"]})
    wrong = JobDefinition("wrong", "celery_sched.sql", "every 1h", kwargs={"nothing": 1})
    said = [(finding.level, finding.message) for finding in doctor.types(made, [good, off, wrong])]
    assert ["info", "info"] == [level for level, _ in said]
    assert "job 'j': sched_allow_shell is off here" in said[0][1]
    assert "job 'wrong': sql: field 'nothing' is refused" in said[1][1]
    made.close()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example package, installed into a folder: its module and the metadata that setuptools makes."""
    folder = tmp_path_factory.mktemp("installed") / "greet"
    shutil.copytree(ROOT / "examples" / "greet", folder)
    subprocess.run(
        [sys.executable, "-c", "import setuptools; setuptools.setup()", "-q", "egg_info"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return folder


def test_the_example_package(installed: Path, tmp_path: Path) -> None:
    """The example package is found once it is installed: listed, checked, run, its secrets hidden."""
    environ = {**os.environ, "PYTHONPATH": str(installed), "CELERY_SCHED_HOME": str(tmp_path)}

    def sched(*arguments: str) -> Any:
        command = [sys.executable, "-m", "celery", "-A", "celery_sched", "sched", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60)

    listed = {one["name"]: one for one in json.loads(sched("jobtypes", "--json").stdout)}
    assert {"http", "greet"} <= listed.keys()
    assert ["name", "times", "password"] == [field["name"] for field in listed["greet"]["fields"]]
    assert 0 == sched("migrate").returncode
    add = ("jobs", "add", "hello", "--type", "greet", "--schedule", "@daily")
    refused = sched(*add, "--set", "name=World", "--set", "times=11")
    assert (2, True) == (refused.returncode, "greet: times 11 is refused" in refused.stderr)
    added = sched(*add, "--set", "name=nobody", "--json")
    assert (0, {"name": "nobody"}) == (added.returncode, json.loads(added.stdout)["kwargs"])
    assert "Warning: nobody will hear it." in added.stderr
    code = (
        "from tests.jobtypes.carried import carry_out\n"
        "print(carry_out('greet', {'name': 'World', 'times': 2, 'password': 'secret:DOOR'}))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**environ, "CELERY_SCHED_SECRET_DOOR": "sesame, open"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "{'said': ['Hello World', 'Hello World'], 'opened_with': '***'}" == ran.stdout.strip()
