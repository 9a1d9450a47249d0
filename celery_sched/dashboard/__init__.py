"""*Schedules* among Flower's own pages: the jobs, their runs, and what people may do with them.

Flower has no plugin hook. What is used instead: ``flower.urls.handlers`` and ``flower.urls.settings`` are a
plain list and a plain dictionary, which its application reads when it starts. None of its files is changed.
"""

from __future__ import annotations


def install() -> None:
    """Give Flower the pages; call it before Flower starts (``celery -A APP flower`` does). May be repeated.

    Importing Flower costs a moment, so nothing of it is imported before this call.
    """
    from flower import urls
    from tornado.web import url

    from celery_sched.dashboard import api, events, handlers, notifications
    from celery_sched.dashboard.pages import PageLoader

    if any(getattr(rule, "name", None) == handlers.JOBS for rule in urls.handlers):
        return
    # before Flower's own: its last rule takes every address
    urls.handlers[0:0] = [
        url(r"/schedules", handlers.JobsPage, name=handlers.JOBS),
        # no job's page: a slash in a job's name is coded
        url(r"/schedules/run/([0-9a-f-]{36})", handlers.RunPage, name=handlers.RUN),
        url(
            r"/schedules/list/notifications",
            notifications.NotificationsPage,
            name=notifications.NOTIFICATIONS,
        ),
        url(r"/schedules/list/events", events.EventsPage, name=events.EVENTS),
        url(r"/schedules/list/deliveries", events.DeliveriesPage, name=events.DELIVERIES),
        url(r"/schedules/(.+)", handlers.JobPage, name=handlers.JOB),
        url(r"/api/schedules", api.JobsApi, name=api.API),
        url(r"/api/schedules/run/([0-9a-f-]{36})", api.RunApi, name=api.RUN_API),
        url(r"/api/schedules/(.+)", api.JobApi, name=api.JOB_API),
    ]
    # Flower's other pages get their navigation through this; ours bring the loader themselves.
    urls.settings.setdefault("template_loader", PageLoader(urls.settings["template_path"]))
