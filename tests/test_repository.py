"""The frame around the code: packaging, scripts, the compose file, and how a test run ends."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted(path for path in (ROOT / "script").iterdir() if path.is_file() and path.name != "lib")


@pytest.fixture(scope="module")
def setup_cfg() -> configparser.ConfigParser:
    """setup.cfg, read as setuptools and alembic read it (with interpolation)."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def lines(text: str) -> list[str]:
    """The lines of a setting that are neither empty nor comments."""
    return [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]


def test_setup_cfg_has_no_bare_percent_sign(setup_cfg: configparser.ConfigParser) -> None:
    """A bare % anywhere in setup.cfg breaks the build: every value must survive interpolation."""
    for section in setup_cfg.sections():
        assert dict(setup_cfg.items(section)) is not None
    assert [] == re.findall(r"(?<!%)%(?![%(])", (ROOT / "setup.cfg").read_text().replace("%%", ""))


WITHOUT_THE_REST = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Refuse())
from celery_sched import app
app.loader.import_default_modules()
"""


def test_what_is_required_is_enough(setup_cfg: configparser.ConfigParser, tmp_path: Path) -> None:
    """Without any package that setup.cfg does not lead to, the app is made and its modules are imported."""
    required: set[str] = set()
    wanted = lines(setup_cfg["options"]["install_requires"])
    while wanted:
        requirement = Requirement(wanted.pop())
        name = canonicalize_name(requirement.name)
        if name in required or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        required.add(name)
        wanted += metadata.requires(name) or ()
    refused = {
        module
        for module, packages in metadata.packages_distributions().items()
        if not {canonicalize_name(package) for package in packages} & {*required, "celery-sched"}
    }
    assert {"pytest", "ruff"} <= refused
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_REST.format(refused=refused)],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert 0 == done.returncode, done.stderr


def test_every_package_is_in_the_wheel_and_nothing_else(setup_cfg: configparser.ConfigParser) -> None:
    """The packages are named one by one: a new folder that is not named would be missing in the wheel."""
    folders = {path.parent for path in (ROOT / "celery_sched").rglob("*.py")}
    found = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    found |= {"celery_sched.migrations", "celery_sched.migrations.versions"}
    assert found == set(lines(setup_cfg["options"]["packages"]))


def test_every_template_and_static_file_is_in_the_wheel(setup_cfg: configparser.ConfigParser) -> None:
    """A file of the dashboard that no pattern matches would be missing in the wheel."""
    patterns = lines(setup_cfg["options.package_data"]["celery_sched.dashboard"])
    dashboard = ROOT / "celery_sched" / "dashboard"
    present = {p for p in dashboard.rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc")}
    assert present == {path for pattern in patterns for path in dashboard.glob(pattern)}


def test_the_extra_all_is_the_sum_of_the_others(setup_cfg: configparser.ConfigParser) -> None:
    """`[all]` has what every extra has (but those of the tests), beyond what is always installed."""
    extras = {name: set(lines(value)) for name, value in setup_cfg["options.extras_require"].items()}
    required = set(lines(setup_cfg["options"]["install_requires"]))
    every = set().union(*(extras[name] for name in extras if name not in ("all", "test")))
    assert every - required == extras["all"]


@pytest.mark.parametrize("script", [*SCRIPTS, ROOT / ".ci" / "run"], ids=lambda path: path.name)
def test_scripts_can_be_started(script: Path) -> None:
    """Every script is executable and says by which program."""
    assert os.access(script, os.X_OK)
    assert script.read_bytes().startswith(b"#!")


def test_compose_file_has_two_schedulers_and_health_checks() -> None:
    """What docker-compose.yml promises: two schedulers without a leader, all of it watched."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    commands = {name: str(service.get("command", "")) for name, service in services.items()}
    assert 2 == sum("celery -A celery_sched beat" in command for command in commands.values())
    assert {"postgres", "redis", "migrate", "worker", "flower"} <= set(services)
    assert {"migrate"} == {name for name, service in services.items() if "healthcheck" not in service}
    for name in ("scheduler-1", "scheduler-2", "worker", "flower"):
        assert "service_completed_successfully" == services[name]["depends_on"]["migrate"]["condition"]
        assert {"CELERY_SCHED_DATABASE_URL", "CELERY_SCHED_REDIS_URL", "CELERY_BROKER_URL"} <= set(
            services[name]["environment"]
        )


def test_the_image_is_made_of_files_that_exist() -> None:
    """Every file that the Dockerfile copies is here and not hidden by .dockerignore."""
    copied = [
        word
        for line in (ROOT / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY")
        for word in line.split()[1:-1]
    ]
    assert [] == [name for name in copied if not (ROOT / name).exists()]
    assert {f"!{name}" for name in copied} <= set((ROOT / ".dockerignore").read_text().splitlines())


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A fresh checkout's scripts, beside a PATH (`bin`) with POSIX tools and no Python."""
    shutil.copytree(ROOT / "script", tmp_path / "checkout" / "script")
    for name in ("setup.cfg", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / "checkout")
    (tmp_path / "bin").mkdir()
    for tool in ("sh", "dirname", "head", "grep", "rm", "cat", "tail", "flock"):
        found = shutil.which(tool)
        assert found or tool == "flock"
        if found:
            (tmp_path / "bin" / tool).symlink_to(found)
    return tmp_path / "checkout"


def start(checkout: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script of that checkout with that PATH alone."""
    return subprocess.run(
        [checkout / "script" / script],
        env={"PATH": str(checkout.parent / "bin"), "HOME": str(checkout)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("script", ["test", "server"])
def test_without_venv_the_package_is_named(checkout: Path, script: str) -> None:
    """A Python that cannot make environments (Debian without python3-venv): say which package, and stop."""
    (checkout.parent / "without" / "ensurepip").mkdir(parents=True)
    (checkout.parent / "without" / "ensurepip" / "__init__.py").write_text("raise ImportError('not here')\n")
    python = checkout.parent / "bin" / "python3"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{checkout.parent}/without" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    done = start(checkout, script)
    assert 1 == done.returncode
    assert "apt-get install python3-venv" in done.stderr
    assert not (checkout / ".venv").exists()


def test_without_python_it_is_named(checkout: Path) -> None:
    """No Python at all: say what is needed, and stop."""
    done = start(checkout, "server")
    assert 1 == done.returncode
    assert "Python 3.11 or later is needed" in done.stderr
    assert not (checkout / ".venv").exists()


def test_an_old_python_is_refused_with_its_version(checkout: Path) -> None:
    """A Python below 3.11 is named with its version, not used."""
    python = checkout.parent / "bin" / "python3"
    python.write_text('#!/bin/sh\ncase "$2" in *print*) echo 3.9;; *) exit 1;; esac\n')
    python.chmod(0o755)
    done = start(checkout, "test")
    assert 1 == done.returncode
    assert "the newest found is 3.9" in done.stderr


def pytest_run(*args: str, ci: str = "", path: str | None = None) -> subprocess.CompletedProcess[str]:
    """A test run of its own in this checkout."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *args],
        cwd=ROOT,
        env={**os.environ, "CI": ci, **({"PATH": path} if path is not None else {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


SKIPPED = "tests/test_servers.py::test_heal_brings_back_what_a_test_broke"
PASSING = "tests/test_repository.py::test_setup_cfg_has_no_bare_percent_sign"
NOWHERE = "/nonexistent"


def test_a_run_without_servers_passes_and_says_which_were_missing() -> None:
    """Skipped tests are named with the packages that would have run them, in the last lines."""
    done = pytest_run(SKIPPED, PASSING, path=NOWHERE)
    assert 0 == done.returncode, done.stdout
    last = "\n".join(done.stdout.splitlines()[-6:])
    assert "1 passed, 1 skipped" in last
    assert re.search(r"skipped: .*Redis", last)
    assert re.search(r"script/services \(Debian packages: .*redis-server", last)


def test_a_missing_server_is_a_failure_in_ci() -> None:
    """The same run under CI=true fails."""
    done = pytest_run(SKIPPED, PASSING, path=NOWHERE, ci="true")
    assert 1 == done.returncode, done.stdout
    assert "a missing program is a failure" in done.stdout


@pytest.mark.parametrize("chosen", [(SKIPPED,), (PASSING, "-k", "no_such_test")], ids=["skipped", "none"])
def test_a_run_that_tested_nothing_is_a_failure(chosen: tuple[str, ...]) -> None:
    """All skipped, or none selected: not a success."""
    done = pytest_run(*chosen, path=NOWHERE)
    assert 5 == done.returncode, done.stdout
    assert "Nothing was tested" in done.stdout
