"""Runs a notebook in a kernel of Jupyter: python run_notebook.py NOTEBOOK OUTPUT writes it with what its cells show."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def main(source: str, output: str) -> None:
    notebook = nbformat.read(source, as_version=4)
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    Path(output).write_text(nbformat.writes(notebook), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
