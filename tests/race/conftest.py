"""A bench on each kind of database; worlds with real workers."""

from tests.flow.conftest import make_world
from tests.store.world import bench, bench_url, make_bench

__all__ = ["bench", "bench_url", "make_bench", "make_world"]
