"""Seconds of a stretch as the bits of one number (bit k: the k-th second), so that sets of them are joined
and counted without being listed: 86,400 seconds of a day are 10 kB."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from celery_sched.rules.schedules.zones import DAY


def bits_of(seconds: Iterable[int]) -> int:
    """The bits of seconds of a day (0 .. 86,399)."""
    if isinstance(seconds, range) and len(seconds) > 1:
        return evenly(seconds[0], seconds.step, seconds[-1] + 1)
    marks = bytearray(DAY // 8)
    for second in seconds:
        marks[second >> 3] |= 1 << (second & 7)
    return int.from_bytes(marks, "little")


def evenly(first: int, step: int, end: int) -> int:
    """Bits first, first + step, ... below ``end``."""
    if first >= end:
        return 0
    if first + step >= end:
        return 1 << first
    return (_comb(step, end - 1) << first) & ((1 << end) - 1)


@lru_cache(maxsize=64)
def _comb(step: int, length: int) -> int:
    """Bits 0, step, 2 * step, ... up to at least ``length``, by doubling."""
    bits, width = 1, step
    while width <= length:
        bits |= bits << width
        width *= 2
    return bits


def moved(bits: int, by: int) -> int:
    """The bits ``by`` places later; what falls before the beginning is cut off."""
    return bits << by if by >= 0 else bits >> -by
