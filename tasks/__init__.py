"""This deployment's own jobs: samples that do real work on any Linux machine. Replace them by yours.

The stand-alone app imports this package; a module is found when it is imported here.
"""

from tasks import metrics, misbehave, reports

__all__ = ["metrics", "misbehave", "reports"]
