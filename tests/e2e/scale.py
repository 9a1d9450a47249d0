"""How large a measurement is: as it is written, or scaled down for every test run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """The sizes of a measurement. Durations in seconds."""

    lease: float
    poll: float
    window: float
    every: int
    """Period of the fast job of measurement 1."""
    slow: float
    """How long its slow neighbour runs."""
    naps: float
    """How long each of the 20 sleeping jobs sleeps."""
    outage: float
    patience: float
    """Added to what is allowed, for the time a busy machine needs: starting processes, forking, logging."""
    lateness_floor: float
    """Lateness below this is no lateness: noise of the machine."""
    storm: int
    """Runs of measurement 11."""
    calm: float
    """Seconds between two of its kills."""
    listen: float
    """Each of the three windows of measurement 12."""
    hiccup: float
    """Added to what the worst of its times may be: what a busy machine does to one of them."""
    events: int
    """Of measurement 13."""


SCALED = Scale(
    lease=3,
    poll=0.5,
    window=15,
    every=1,
    slow=6,
    naps=1,
    outage=5,
    patience=10,
    lateness_floor=1.5,
    storm=400,
    calm=1.5,
    listen=7,
    hiccup=3,
    events=200,
)
"""For every test run."""
FULL = Scale(
    lease=60,
    poll=1,
    window=60,
    every=5,
    slow=25,
    naps=5,
    outage=20,
    patience=5,
    lateness_floor=0.1,
    storm=10_000,
    calm=5,
    listen=60,
    hiccup=0,
    events=10_000,
)
"""As the measurements are written: for script/measure."""
