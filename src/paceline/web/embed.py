"""A report, which is a whole page of its own, within the site: the navigation above it, and one policy for both."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fastapi import Request, Response
from markupsafe import Markup
from starlette.responses import HTMLResponse

from paceline.web.site import Script, Site, own_style, script, secured, templates

_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">\n?')
_HASH = re.compile(r"'sha256-[A-Za-z0-9+/=]+'")


def embedded(site: Site, request: Request, report: str, *, above: Markup, scripts: Iterable[str] = ()) -> Response:
    """The report with the navigation, something above it, and scripts beside its own."""
    loaded: list[Script] = [script(name) for name in scripts]
    policy = _POLICY.search(report)
    hashes = _HASH.findall(policy.group(1)) if policy else []
    top = templates().get_template("above.html").render(above=above, **site.around(request))
    more = "".join(f"<script>{one.text}</script>\n" for one in loaded)
    head, body, rest = _POLICY.sub("", report, count=1).partition("<body>\n")
    head = head.replace("</head>", f"<style>{own_style()}</style>\n</head>", 1)
    before, end, after = rest.rpartition("</body>")
    return secured(HTMLResponse(f"{head}{body}{top}{before}{more}{end}{after}"), loaded, hashes)
