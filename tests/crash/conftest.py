"""A bench on each kind of database."""

from tests.store.world import bench, bench_url, make_bench

__all__ = ["bench", "bench_url", "make_bench"]
