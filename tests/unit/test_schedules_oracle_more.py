"""The other half of the pairs of test_schedules_oracle.py, in a file of its own: files run side by side."""

from __future__ import annotations

import pytest

from tests.unit.cron_compare import PAIRS, PARTS, TIMEOUT, compare


@pytest.mark.timeout(TIMEOUT)
@pytest.mark.parametrize("part", range(PARTS // 2, PARTS))
def test_random_schedules_agree_with_the_oracle(part: int) -> None:
    """Random expression x zone pairs have exactly the instants that looking at every minute finds."""
    assert PAIRS // PARTS == compare(part)
