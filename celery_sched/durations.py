"""Durations as people write them: ``90s``, ``1h30m``, ``PT5M``, numbers of seconds, timedelta.

Everything is exact to the microsecond; text is read with decimal arithmetic, so ``0.1s`` is 100 ms.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from decimal import Decimal

from celery_sched.errors import InvalidValue

# Longer than any outage or interval that makes sense, and small enough that adding one to an
# instant of this century cannot leave the range of datetime.
LONGEST = timedelta(days=36_525)

FORMS = 'a duration is written "90s", "5m", "1h30m", "1d", "2w", "250ms", "PT5M" or a number of seconds'

_NUMBER = r"[0-9]{1,18}(?:\.[0-9]{1,6})?"
_SHORT = re.compile(" ?".join(rf"(?:({_NUMBER}) ?{unit})?" for unit in ("w", "d", "h", "m", "s", "ms")))
_ISO = re.compile(
    rf"P(?:({_NUMBER})W)?(?:({_NUMBER})D)?(?:T(?=[0-9])(?:({_NUMBER})H)?(?:({_NUMBER})M)?(?:({_NUMBER})S)?)?",
    re.IGNORECASE,
)
_PLAIN = re.compile(_NUMBER)
_MICROSECONDS = tuple(
    Decimal(seconds) * 1_000_000 for seconds in ("604800", "86400", "3600", "60", "1", "0.001")
)


def parse_duration(value: object, what: str, *, allow_zero: bool = False) -> timedelta:
    """Read a duration; ``what`` names the setting or argument in the error message.

    Numbers, and text that is only a number, are seconds. Raises InvalidValue for anything that is not
    a finite duration above zero (or zero, with ``allow_zero``) of at most 100 years.
    """
    micros = _microseconds(value, what)
    if micros < 0:
        raise InvalidValue(what, value, "a duration is not negative")
    if micros > LONGEST // timedelta(microseconds=1):
        raise InvalidValue(what, value, "a duration is at most 100 years")
    found = timedelta(microseconds=round(micros))
    if micros and not found:
        raise InvalidValue(what, value, "the shortest duration is one microsecond")
    if not found and not allow_zero:
        raise InvalidValue(what, value, "the duration must be longer than zero")
    return found


def format_duration(duration: timedelta) -> str:
    """The shortest text that parse_duration reads back as the same duration: ``1d2h``, ``1.5s``."""
    sign = "-" if duration < timedelta(0) else ""
    minutes, rest = divmod(abs(duration), timedelta(minutes=1))
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [f"{amount}{unit}" for amount, unit in ((days, "d"), (hours, "h"), (minutes, "m")) if amount]
    if rest or not parts:
        micros = rest // timedelta(microseconds=1)
        seconds = f"{micros // 1_000_000}.{micros % 1_000_000:06d}".rstrip("0").rstrip(".")
        parts.append(f"{seconds}s")
    return sign + "".join(parts)


def _microseconds(value: object, what: str) -> Decimal:
    if isinstance(value, timedelta):
        return Decimal(value // timedelta(microseconds=1))
    if isinstance(value, float) and math.isfinite(value):
        return Decimal(str(value)) * 1_000_000  # str: 0.1 is meant as a tenth, not as its binary neighbour
    if isinstance(value, int) and not isinstance(value, bool):
        return Decimal(value) * 1_000_000
    if isinstance(value, str):
        return _text_microseconds(value, what)
    raise InvalidValue(what, value, FORMS)


def _text_microseconds(text: str, what: str) -> Decimal:
    stripped = text.strip()
    if _PLAIN.fullmatch(stripped):
        return Decimal(stripped) * 1_000_000
    short = _SHORT.fullmatch(stripped)
    iso = _ISO.fullmatch(stripped)
    amounts = short.groups() if short else (*iso.groups(), None) if iso else ()
    if not any(amount is not None for amount in amounts):
        hint = "Units are w, d, h, m, s and ms, the largest first, each at most once."
        raise InvalidValue(what, text, FORMS, hint)
    pairs = zip(amounts, _MICROSECONDS, strict=True)
    return sum((Decimal(amount) * unit for amount, unit in pairs if amount is not None), Decimal(0))
