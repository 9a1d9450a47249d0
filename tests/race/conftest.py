"""A bench on each kind of database; worlds with real workers."""

from tests.flow.conftest import make_world
from tests.store.world import bench, make_bench

__all__ = ["bench", "make_bench", "make_world"]
