"""What pyproject.toml cannot say: links to wherever the project is hosted, which $PACELINE_REPOSITORY names.

The release workflow sets it. Without it a package has no links, and its README those of the checkout.
"""

from __future__ import annotations

import os
import re
import runpy
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
VERSION = runpy.run_path(str(ROOT / "src" / "paceline" / "version.py"))["VERSION"]
REPOSITORY = os.environ.get("PACELINE_REPOSITORY", "").rstrip("/")
_LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!\w+:|#)([^)\s]+)\)")


def _links() -> dict[str, str]:
    if not REPOSITORY:
        return {}
    return {
        "Source": REPOSITORY,
        "Documentation": f"{REPOSITORY}/tree/v{VERSION}/docs",
        "Changelog": f"{REPOSITORY}/blob/v{VERSION}/CHANGELOG.md",
        "Issues": f"{REPOSITORY}/issues",
    }


def _readme() -> str:
    """The README, whose links also work outside the repository."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    if not REPOSITORY:
        return text
    return _LINK.sub(
        lambda link: f"{link[1]}{link[2]}({REPOSITORY}/{'raw' if link[1] else 'blob'}/v{VERSION}/{link[3]})",
        text,
    )


setup(project_urls=_links(), long_description=_readme(), long_description_content_type="text/markdown")
