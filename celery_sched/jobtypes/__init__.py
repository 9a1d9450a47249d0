"""Job types: tasks with a configuration that is checked when a job is defined.

A job of a type is a job whose task is ``celery_sched.<type>`` and whose ``kwargs`` are the type's
configuration. ``registry`` finds the types, ``base`` is what one is made of; one file a type.
"""
