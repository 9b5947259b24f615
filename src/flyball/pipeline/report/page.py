"""The page around a report: one HTML file with its style, its script and plotly's inside, so that it opens offline.

It knows how a page looks, but not what is measured.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from string import Template

from flyball.pipeline.report.figures import Figure
from flyball.pipeline.report.markup import Html, details, element, json_script, markup


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the page that the table of contents names."""

    anchor: str
    title: str
    body: Html


def write_page(path: Path, title: str, parts: Sequence[Part], footer: Html) -> None:
    """Write the page to `path`; its folder is made if it is not there."""
    contents = _contents(parts) if len(parts) > 1 else Html("")
    page = Template(_asset("page.html")).substitute(
        title=markup(title),
        style=_asset("style.css"),
        contents=contents,
        body=markup([part.body for part in parts]),
        footer=footer,
        plotly=_packed_plotly(),
        script=_asset("page.js"),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")


def plots(figures: Sequence[Figure], anchor: str) -> Html:
    """Return figures side by side where there is room; each is drawn when it comes into view."""
    shown = [_plot(figure, f"{anchor}-plot-{number}") for number, figure in enumerate(figures, start=1)]
    return element("div", shown, class_="plots") if shown else Html("")


def _plot(figure: Figure, anchor: str) -> Html:
    return element(
        "figure",
        element("figcaption", figure.title),
        element(
            "div",
            class_="canvas",
            role="img",
            aria_label=figure.says,
            style=f"height:{figure.height_px}px",
            data_figure=anchor,
        ),
        element("p", figure.note, class_="note") if figure.note else None,
        details("Show the numbers", figure.numbers) if figure.numbers else None,
        json_script(anchor, {"data": list(figure.data), "layout": figure.layout}),
        class_="plot wide" if figure.is_wide else "plot",
    )


def _contents(parts: Sequence[Part]) -> Html:
    links = [element("li", element("a", part.title, href=f"#{part.anchor}")) for part in parts]
    # Open without JavaScript too; the script folds it on small screens.
    inside = details("Contents", element("ol", links), is_open=True)
    return element("nav", inside, class_="contents", aria_label="Contents")


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


@cache
def _packed_plotly() -> str:
    script = resources.files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()
    # Without a time in it the same report is the same file.
    return base64.b64encode(gzip.compress(script, compresslevel=9, mtime=0)).decode("ascii")
