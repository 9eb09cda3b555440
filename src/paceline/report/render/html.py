"""A document as one HTML file that needs nothing else: no network, no fonts, no other file."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from itertools import count
from typing import Any

from jinja2 import Environment, FileSystemBytecodeCache, PackageLoader
from jinja2.bccache import Bucket
from markupsafe import Markup

from paceline.core.errors import InputError
from paceline.core.files import cache_directory
from paceline.core.quantity import show_count, show_duration, show_size
from paceline.report import charts, vega
from paceline.report.charts import Chart
from paceline.report.document import Details, Document, Item, Medium, Section, Table, Tone, shown
from paceline.report.text import clean, heading, humanize, one_line, split_code, when
from paceline.version import VERSION

_BYTES = {"total", "available", "limit", "limit_used", "swap_total", "swap_used", "size", "sizes", "memory"}
_BYTES |= {"memory_total", "memory_used", "activation_bytes"}


def render(document: Document) -> str:
    """The whole page, in the frame that all pages share; only one with a script allows that one to run."""
    templates, can_draw = page_templates(), vega.is_installed()
    numbers = count()
    drawing: dict[str, Future[str]] = {}  # by the placeholder in the page
    if any(not chart.svg for chart in document.charts):
        vega.warm_up()

    def drawable(part: Section | Details) -> list[Item]:
        return [item for item in shown(part, Medium.HTML) if can_draw or not isinstance(item, Chart) or item.svg]

    def drawn(chart: Chart) -> Markup:
        """A picture, or a placeholder for one that another process draws while the rest of the page is written."""
        name = f"chart-{next(numbers)}"
        if chart.svg:
            return Markup(charts.draw_svg(chart, name))
        drawing[f"<!--{name}-->"] = pool.submit(charts.draw_svg, chart, name)
        return Markup(f"<!--{name}-->")

    values: dict[str, Any] = {
        "document": document,
        "answer": document.lead,
        "version": document.version,
        "style": Markup(templates.get_template("report.css").render()),
        "charts_missing": not can_draw and any(not chart.svg for chart in document.charts),
        "drawn": drawn,
        "shown": drawable,
        "kind_of": lambda item: type(item).__name__.lower(),
        "with_code": with_code,
        "Tone": Tone,
    }
    if any(isinstance(item, Details) or (isinstance(item, Table) and item.is_sortable) for item in document.items):
        script = Markup(templates.get_template("report.js").render())
        digest = hashlib.sha256(str(script).encode()).digest()
        values |= {"script": script, "script_hash": base64.b64encode(digest).decode()}
    with ThreadPoolExecutor(1) as pool:
        page = templates.get_template("document.html").render(values)
        return re.sub("<!--chart-[0-9]+-->", lambda placeholder: drawing[placeholder[0]].result(), page)


def fragment(document: Document) -> str:
    """What matters of it, to stand within a page of somebody else: the sentences and tables, without charts."""
    return (
        page_templates()
        .get_template("fragment.html")
        .render(
            document=document,
            shown=lambda section: shown(section, Medium.TERMINAL),
            kind_of=lambda item: type(item).__name__.lower(),
            with_code=with_code,
        )
    )


@lru_cache(maxsize=1)
def page_templates() -> Environment:
    """The templates of all pages, with the filters that they share."""
    templates = Environment(
        loader=PackageLoader("paceline.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        bytecode_cache=_compiled(),
    )
    templates.filters |= {
        "together": lambda text: text.replace("± ", "±\u00a0").replace(" %", "\u00a0%"),
        "leaves": lambda mapping: {k: v for k, v in mapping.items() if not isinstance(v, Mapping) and not is_table(v)},
        "words": humanize,
        "heading": heading,
        "clean": clean,
        "line": one_line,
        "when": when,
        "duration": show_duration,
        "fact": show_fact,
    }
    templates.tests |= {"nested": lambda value: isinstance(value, Mapping), "table": is_table}
    return templates


class _CompiledTemplates(FileSystemBytecodeCache):
    """Templates as Python compiled them, which takes a tenth of a page's time and is never worth a failure."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        with suppress(OSError):
            super().dump_bytecode(bucket)


def _compiled() -> _CompiledTemplates | None:
    try:
        folder = cache_directory() / "templates"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_safe = folder.stat().st_uid == os.getuid()  # it is code, and it is run
    except (InputError, OSError):
        return None
    return _CompiledTemplates(str(folder), f"{VERSION}-%s") if is_safe else None


def is_table(value: object) -> bool:
    """Whether it is a list of mappings, one for each of several things."""
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def show_fact(value: Any, key: str = "") -> str:
    """A fact, a parameter or a part of the environment, as text."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and key in _BYTES:
        return show_size(value)
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        return show_count(value)
    if isinstance(value, list | tuple):
        return ", ".join(show_fact(item, key) for item in value) or "none"
    return clean(value) if isinstance(value, str) else clean(json.dumps(value, default=str))


def with_code(text: str) -> Markup:
    """A line whose commands, between backticks, look like commands."""
    parts = split_code(text.replace("± ", "±\u00a0").replace(" %", "\u00a0%"))
    return Markup("").join(
        Markup("<code>{}</code>" if place % 2 else "{}").format(part) for place, part in enumerate(parts)
    )
