"""Templates: ours, then Flower's; and our link in Flower's navigation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tornado.template import BaseLoader, Loader, Template

OURS = Path(__file__).parent / "templates"
NAVIGATION = "navbar.html"
END_OF_LINKS = "</ul>"
"""The first one in Flower's navigation ends the list of its pages."""
LINK = """\
        <li class="nav-item">
          <a class="nav-link{% if active_tab == 'schedules' %} active{% end %}"
            href="{{ reverse_url('schedules') }}"
            {% if active_tab == 'schedules' %}aria-current="page"{% end %}>Schedules</a>
        </li>
      """


class PageLoader(Loader):
    """Finds our templates beside Flower's.

    Where Flower's navigation is not as expected it stays as it is: our pages then have no link, but work.
    """

    def resolve_path(self, name: str, parent_path: str | None = None) -> str:
        """All templates lie side by side."""
        return name

    def _create_template(self, name: str) -> Template:
        # `_create_template` is what tornado's own loaders override; the cache around it is BaseLoader's
        own = OURS / name
        path = own if own.is_file() else Path(self.root, name)
        text = path.read_text(encoding="utf-8")
        if name == NAVIGATION:
            text = with_link(text)
        return Template(text, name=name, loader=self)


def with_link(navigation: str) -> str:
    """Flower's navigation with a link to our page after its own."""
    before, end, after = navigation.partition(END_OF_LINKS)
    return f"{before.rstrip(' ')}{LINK}{end}{after}" if end else navigation


def loader_of(settings: dict[str, Any]) -> BaseLoader:
    """The loader for our pages, whatever loader Flower's own pages use."""
    known = settings.get("template_loader")
    return known if isinstance(known, PageLoader) else PageLoader(settings["template_path"])
