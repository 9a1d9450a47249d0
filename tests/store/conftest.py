"""A bench on each kind of database."""

from tests.store.world import bench, make_bench

__all__ = ["bench", "make_bench"]
