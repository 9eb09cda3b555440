"""Runs the cells of a notebook, or the examples of a page, one after the other in one namespace, as a kernel would.

python run_cells.py FILE prints, as the last line, a JSON list of what each cell would show: the rich form of its last
expression, if it has one.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from types import ModuleType


def cells_of(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        return ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    cells, current, indent = [], None, ""
    for line in text.splitlines():
        if line.strip() == "```python":
            current, indent = [], line[: line.index("`")]
        elif line.strip() == "```" and current is not None:
            source = "\n".join(current)
            if not source.startswith("# "):  # a file of its own, which its first line names
                cells.append(source)
            current = None
        elif current is not None:
            current.append(line.removeprefix(indent))
    return cells


def run(source: str, number: int, module: ModuleType) -> str:
    tree = ast.parse(source, f"<cell {number}>")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, f"<cell {number}>", "exec"), vars(module))  # noqa: S102
    if last is None:
        return ""
    value = eval(compile(ast.Expression(last.value), f"<cell {number}>", "eval"), vars(module))  # noqa: S307
    for form in ("_repr_html_", "_repr_svg_"):
        if hasattr(value, form):
            return str(getattr(value, form)())
    return repr(value)


def main() -> None:
    module = sys.modules["__main__"] = ModuleType("__main__")  # where functions of a notebook are, too
    shown = [run(source, number, module) for number, source in enumerate(cells_of(Path(sys.argv[1])))]
    sys.stdout.write("\n" + json.dumps(shown) + "\n")


if __name__ == "__main__":
    main()
