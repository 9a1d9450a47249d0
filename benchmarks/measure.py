"""The measurements of the scheduler as they are written (60 s windows, a lease of 60 s), as a table.

Run it by ``script/measure [--only N] [--setup postgres|embedded] [--scaled]``. The bodies are those of
``tests/e2e/test_measured.py``, which runs them scaled down. Exit code 1 when one of them fails.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from rich.console import Console
from rich.table import Table

from tests.e2e import caps, consumers, faults, measurements, starving, storm
from tests.e2e.launch import node_kind, start
from tests.e2e.nodes import NodeFailed
from tests.e2e.scale import FULL, SCALED
from tests.e2e.site import Site
from tests.private_server import POSTGRESQL, REDIS
from tests.servers import PostgresServer

Body = Callable[[Site], dict[str, Any]]
BOTH = ("postgres", "embedded")
MEASUREMENTS: tuple[tuple[int, str, tuple[str, ...], Body], ...] = (
    (1, "a fast job beside a slow and five hung ones", BOTH, measurements.fast_beside_hung),
    (2, "two schedulers", BOTH, partial(measurements.two_schedulers, kill=False)),
    (2, "two schedulers, one killed half way", BOTH, partial(measurements.two_schedulers, kill=True)),
    (3, "kill -9 of a worker", BOTH, measurements.killed_worker),
    (4, "cap 5, 20 due jobs", BOTH, caps.full_cap),
    (5, "cap full of hung jobs", BOTH, caps.hung_cap),
    (6, "late settler", BOTH, faults.late_settler),
    (7, "broker down", BOTH, faults.broker_down),
    (7, "broker black-holed", ("postgres",), faults.broker_black_hole),
    (8, "database silent during a tick", BOTH, faults.silent_database),
    (9, "idle worker beside five hung jobs", BOTH, measurements.idle_worker_beside),
    *(
        (
            10,
            f"a healthy job; {kind} ones hold every slot",
            BOTH,
            partial(starving.healthy_beside_hung, kind=kind),
        )
        for kind in starving.KINDS
    ),
    (11, "10,000 runs; workers, schedulers, Redis killed", ("postgres",), storm.no_slot_is_lost),
    (12, "slow and hung consumers; slow and hung jobs", BOTH, consumers.slow_consumers_delay_nobody),
    (13, "10,000 events; workers, schedulers killed", ("postgres",), consumers.no_event_is_lost),
)


def main() -> int:
    """Measure, print, and say by the exit code whether all passed."""
    parser = argparse.ArgumentParser(prog="script/measure", description=__doc__)
    parser.add_argument("--only", type=int, choices=sorted({number for number, *_ in MEASUREMENTS}))
    parser.add_argument("--setup", choices=BOTH)
    parser.add_argument("--scaled", action="store_true", help="the sizes of the tests: a few minutes")
    chosen = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    setups = [chosen.setup] if chosen.setup else list(BOTH)
    absent = [program for program in (POSTGRESQL, REDIS) if program.find() is None]
    if "postgres" in setups and absent:
        names = ", ".join(program.name for program in absent)
        console.print(f"[red]{names} not installed: run script/services, or --setup embedded")
        return 2
    table = Table("", "measurement", "set-up", "result", "figures", title=f"{node_kind()} nodes")
    failures = 0
    folder = Path(tempfile.mkdtemp(prefix="sched-measure-"))
    postgres = PostgresServer() if "postgres" in setups else None
    try:
        if postgres is not None:
            postgres.start()
        for number, title, kinds, body in MEASUREMENTS:
            for setup in setups:
                if setup not in kinds or chosen.only not in (None, number):
                    continue
                console.print(f"{number} {title} ({setup}) ...")
                began = time.monotonic()
                passed, figures = _measure(body, setup, folder, chosen.scaled, postgres)
                failures += not passed
                console.print(f"  {'passed' if passed else 'FAILED'} in {time.monotonic() - began:.0f} s")
                result = "[green]passed" if passed else "[red]FAILED"
                table.add_row(str(number), title, setup, result, figures)
    finally:
        if postgres is not None:
            postgres.destroy()
        shutil.rmtree(folder, ignore_errors=True)
    console.print(table)
    return 1 if failures else 0


def _measure(
    body: Body, setup: Any, folder: Path, scaled: bool, postgres: PostgresServer | None
) -> tuple[bool, str]:
    site = Site(setup, folder / str(time.monotonic_ns()), SCALED if scaled else FULL, start, postgres)
    try:
        return True, _shown(body(site))
    except (AssertionError, TimeoutError, NodeFailed) as error:
        print(f"{error}\n{site.report()}", file=sys.stderr)
        return False, str(error).splitlines()[0] if str(error) else repr(error)
    finally:
        site.close()


def _shown(figures: dict[str, Any]) -> str:
    return "\n".join(
        f"{name}: {value:.3f}" if isinstance(value, float) else f"{name}: {value}"
        for name, value in figures.items()
    )


if __name__ == "__main__":
    sys.exit(main())
