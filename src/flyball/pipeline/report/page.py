"""Renders sections with templates: one HTML file including style, script and plotly, to open offline.

It assembles the page; the sections provide its content.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from flyball.pipeline.report.content import Section


def write_page(path: Path, title: str, sections: Sequence[Section], footer: str) -> None:
    """Write the page to `path`; its folder is created if it is missing."""
    templates = _templates()
    page = templates.get_template("page.html").render(
        title=title,
        sections=sections,
        bodies=[
            Markup(templates.get_template(section.template).render(section.data, section=section))
            for section in sections
        ],
        footer=footer,
        style=Markup(_asset("style.css")),
        script=Markup(_asset("page.js")),
        plotly=_packed_plotly(),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")


@cache
def _templates() -> Environment:
    found = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # The order of a plot's keys is kept, and NaN is not JSON.
    found.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return found


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


@cache
def _packed_plotly() -> str:
    script = resources.files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()
    # Without a timestamp, the same report is the same file.
    return base64.b64encode(gzip.compress(script, compresslevel=9, mtime=0)).decode("ascii")
