"""``holidays:DE`` and ``holidays:DE-BE``: public holidays of a country or a part of it (package holidays).

Names are in English where the package has them, whatever the locale of the process. All schedulers of an app
should have the same version of the package: laws change, and another version may know another day.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from celery_sched.errors import InvalidValue
from celery_sched.rules.calendars.base import ONE_DAY, Span, midnight, touching

FORM = '"holidays:DE" or "holidays:DE-BE" (ISO code of a country, with a part of it)'
MISSING = "Run: pip install 'celery_sched[calendars]'"


@dataclass(frozen=True, eq=False, slots=True)
class Holidays:
    """Whole days of the job's zone. Made by ``holidays``.

    Years that the package does not know (it ends with 2100) have no holidays.
    """

    text: str
    country: str
    subdivision: str | None

    def spans(self, first: date, last: date) -> Sequence[Span]:
        years = range(first.year, last.year + 1)
        found = [span for year in years for span in _year(self.country, self.subdivision, year)]
        return touching(found, first, last)

    def weekend(self) -> frozenset[int] | None:
        """The weekend of the country as it is today; that of former years is not looked at."""
        return _weekend(self.country)


def holidays(text: str, body: str) -> Holidays:
    """Read a term; ``body`` is what follows ``holidays:`` in ``text``. InvalidValue names what is near."""
    package = _package(text)
    wanted, dash, part = (word.strip() for word in body.partition("-"))
    country = wanted.upper()
    if country not in package.list_supported_countries():
        raise InvalidValue(
            "exclusion calendar",
            text,
            f"the holidays package knows no country {wanted!r}; write {FORM}",
            _near_country(package, wanted),
        )
    if not dash:
        return Holidays(f"holidays:{country}", country, None)
    subdivision = _subdivision(package.country_holidays(country), part)
    if subdivision is None:
        known = package.country_holidays(country).subdivisions
        near = get_close_matches(part.upper(), known, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(near)}? " if near else ""
        hint += f"Parts of {country} are {', '.join(known)}." if known else f"Write holidays:{country}."
        raise InvalidValue("exclusion calendar", text, f"{country} has no part {part!r}", hint)
    return Holidays(f"holidays:{country}-{subdivision}", country, subdivision)


def _package(text: str) -> Any:
    try:
        return importlib.import_module("holidays")
    except ImportError as error:
        allowed = "the package holidays is not installed here"
        raise InvalidValue("exclusion calendar", text, allowed, MISSING) from error


def _near_country(package: Any, wanted: str) -> str:
    # Keyed by the English name in lower case, with underscores: {"germany": ("Germany", "DE", "DEU"), ...}
    names = {name: codes[1] for name, codes in package.registry.COUNTRIES.items()}
    name = wanted.lower().replace(" ", "_")
    near = [names[found] for found in get_close_matches(name, names, n=1, cutoff=0.8)]
    near = near or get_close_matches(wanted.upper(), package.list_supported_countries(), n=3, cutoff=0.5)
    return f"Did you mean {' or '.join(near)}?" if near else ""


def _subdivision(country: Any, part: str) -> str | None:
    """The code of a part of the country, by its code or its name, in any case."""
    names = {code.casefold(): code for code in country.subdivisions}
    names |= {name.casefold(): code for name, code in country.subdivisions_aliases.items()}
    found = names.get(part.casefold())
    return None if found is None else str(found)


@lru_cache(maxsize=512)
def _weekend(country: str) -> frozenset[int]:
    return frozenset(_package(f"holidays:{country}").country_holidays(country).weekend)


@lru_cache(maxsize=4096)
def _year(country: str, subdivision: str | None, year: int) -> tuple[Span, ...]:
    package = _package(f"holidays:{country}")
    # The language is given because the default is the locale's, which differs from node to node.
    days = package.country_holidays(
        country, subdiv=subdivision, years=year, expand=False, language="en_US"
    ).items()
    return tuple(
        Span(midnight(day), midnight(day) + ONE_DAY, name) for day, name in sorted(days) if day.year == year
    )
