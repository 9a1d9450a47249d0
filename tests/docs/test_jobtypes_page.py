"""docs/jobtypes.md says what the types say of themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_sched.jobtypes import registry
from celery_sched.jobtypes.base import JobType
from celery_sched.jobtypes.shell import PASSED_ON

PAGE = (Path(__file__).parents[2] / "docs" / "jobtypes.md").read_text()


@pytest.mark.parametrize("name", sorted(registry.BUILT_IN))
def test_every_field_of_a_type(name: str) -> None:
    """A type has a section with the table that its fields make of themselves."""
    kind = registry.find(name)
    assert isinstance(kind, JobType)
    _, found, section = PAGE.partition(f"# `{name}`\n")
    assert found
    assert registry.reference(kind) in section.partition("\n#")[0]


def test_what_a_command_gets_of_the_environment() -> None:
    """The variables that a command gets are all there."""
    assert [] == [name for name in PASSED_ON if f"`{name}`" not in PAGE]
