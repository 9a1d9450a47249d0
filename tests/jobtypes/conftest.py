"""Sites for the tests of job types."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.jobtypes.site import Site


@pytest.fixture
def site() -> Iterator[Site]:
    """A web server at 127.0.0.1."""
    with Site() as made:
        yield made
