"""This deployment's own jobs: samples that do real work on any Linux machine. Replace them by yours.

The stand-alone app imports this package and every module in it; a scheduler or worker finds new ones when it
starts.
"""
