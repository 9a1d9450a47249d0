"""Places at which tests stop, fail or kill the code: no-ops until they are armed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_sched import failpoints
from celery_sched.failpoints import arm, disarm, failpoint

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _nothing_armed() -> Iterator[None]:
    """No place stays armed after a test."""
    yield
    failpoints._armed.clear()


def test_a_place_does_nothing_until_it_is_armed() -> None:
    """Armed, it acts at each pass; another place does not; disarmed, it is a no-op again."""
    reached: list[str] = []
    failpoint("claim:committed")
    arm("claim:committed", lambda: reached.append("claim"))
    failpoint("claim:committed")
    failpoint("plan:committed")
    failpoint("claim:committed")
    assert ["claim", "claim"] == reached
    disarm("claim:committed")
    disarm("never:armed")
    failpoint("claim:committed")
    assert ["claim", "claim"] == reached


def program(armed: str, passes: int) -> subprocess.CompletedProcess[str]:
    """A process that passes `a` some times, then `b` once, armed by its environment."""
    code = (
        "from celery_sched.failpoints import FailpointReached, failpoint\n"
        f"for n in range({passes}):\n"
        "    try: failpoint('a')\n"
        "    except FailpointReached: print('raised', n)\n"
        "failpoint('b')\n"
        "print('end')\n"
    )
    return subprocess.run(
        [sys.executable, "-u", "-c", code],
        cwd=ROOT,
        env={**os.environ, "CELERY_SCHED_FAILPOINTS": armed},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("armed", "code", "said"),
    [
        ("", 0, ["end"]),
        ("c=kill", 0, ["end"]),
        ("a=raise", 0, ["raised 0", "raised 1", "raised 2", "raised 3", "end"]),
        ("a=raise@3", 0, ["raised 2", "end"]),
        ("b=kill", -signal.SIGKILL, []),
        (" a=raise@2 , b=kill ", -signal.SIGKILL, ["raised 1"]),
        ("a=kill@5", 0, ["end"]),
        ("a=kill@4", -signal.SIGKILL, []),
    ],
)
def test_armed_by_the_environment(armed: str, code: int, said: list[str]) -> None:
    """`name=kill`, `name=raise` and `name=kill@3`, several separated by commas; a kill is a real SIGKILL."""
    done = program(armed, 4)
    assert (code, said) == (done.returncode, done.stdout.split("\n")[:-1]), done.stderr


@pytest.mark.parametrize("armed", ["a", "a=", "a=explode", "=kill", "a=kill@", "a=kill@x", "a=kill@0"])
def test_a_wrong_action_is_named(armed: str) -> None:
    """A variable that cannot be read stops the process and says how it is written."""
    done = program(armed, 1)
    assert 1 == done.returncode
    assert "CELERY_SCHED_FAILPOINTS" in done.stderr and repr(armed) in done.stderr


def test_each_place_has_one_name() -> None:
    """Every `failpoint(...)` in the code has a name of the form `step:place`, used at one place only."""
    names: list[str] = []
    for path in (ROOT / "celery_sched").rglob("*.py"):
        if path.name != "failpoints.py":
            names += re.findall(r"failpoint\(([^)]*)\)", path.read_text())
    assert sorted(set(names)) == sorted(names)
    assert [] == [name for name in names if not re.fullmatch(r'"[a-z_]+:[a-z_]+"', name)]
    assert names
