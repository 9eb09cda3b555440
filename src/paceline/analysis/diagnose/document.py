"""YAML that others wrote: plain data within bounds, built without running a constructor of anything.

Anchors and merge keys are allowed, since SuperBench's files have them, but what they expand to is counted before it is
built, so that a few lines cannot become gigabytes. A duplicate key is an error.
"""

from __future__ import annotations

from typing import Any

import yaml

from paceline.core.errors import InputError

MOST_BYTES = 256 * 1024
DEEPEST = 30
MOST_NODES = 20_000
LONGEST_NUMBER = 30

_TAG = "tag:yaml.org,2002:"
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_document(text: str) -> Any:
    """What a document holds: mappings, lists, text, numbers, true, false and null."""
    if len(text.encode("utf-8", "surrogatepass")) > MOST_BYTES:
        raise InputError("too-many-bytes", f"a file of rules has at most {MOST_BYTES // 1024} KiB")
    try:
        _check_depth(text)
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError("not-yaml", f"not valid YAML: {error.problem}", where=line) from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError("not-yaml", f"not valid YAML: {' '.join(str(error).split())}") from None
    if root is None:
        return None
    _check_size(root)
    return _build(root)


def _check_depth(text: str) -> None:
    """Look at the events alone, one by one: a nested document must not even be composed."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=_LOADER)):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEEPEST:
            raise InputError("too-deep", f"it is nested more than {DEEPEST} deep")
        if count > 2 * MOST_NODES:
            raise InputError("too-many-parts", f"it has more than {MOST_NODES:,} parts")


def _check_size(root: yaml.Node) -> None:
    """Count the parts as if every alias were written out."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: yaml.Node) -> int:
        if id(node) in open_nodes:
            raise InputError("endless-anchor", "an anchor holds itself")
        if id(node) not in sizes:
            open_nodes.add(id(node))
            sizes[id(node)] = 1 + sum(size(child) for child in _children(node))
            open_nodes.discard(id(node))
        if sizes[id(node)] > MOST_NODES:
            raise InputError("too-many-parts", f"its aliases expand to more than {MOST_NODES:,} parts")
        return sizes[id(node)]

    size(root)


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _build(node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
        return _mapping(node)
    if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
        return [_build(item) for item in node.value]
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node)
    raise _refused_tag(node)


def _mapping(node: yaml.MappingNode) -> dict[str, Any]:
    own: dict[str, Any] = {}
    merged: dict[str, Any] = {}
    for key_node, value_node in node.value:
        if key_node.tag == f"{_TAG}merge":
            brought = _build(value_node)
            for one in brought if isinstance(brought, list) else [brought]:
                if not isinstance(one, dict):
                    raise InputError(
                        "not-a-mapping", "'<<' takes a mapping", where=_line(key_node), key="<<", value=one
                    )
                merged = {**one, **merged}
            continue
        key = str(_build(key_node))
        if key in own:
            raise InputError("duplicate-key", f"duplicate key '{key[:80]}'", where=_line(key_node), key=key)
        own[key] = _build(value_node)
    return {**merged, **own}


def _scalar(node: yaml.ScalarNode) -> Any:
    text: str = node.value
    kind = node.tag.removeprefix(_TAG)
    if kind in ("str", "timestamp"):
        return text
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() in ("yes", "true", "on")
    if kind in ("int", "float"):
        if len(text) > LONGEST_NUMBER:
            message = f"a number has at most {LONGEST_NUMBER} digits"
            raise InputError("too-many-digits", message, where=_line(node), value=text)
        plain = text.replace("_", "")
        try:
            return int(plain, 10) if kind == "int" else float(plain)
        except ValueError:  # 0x10, 1:30, .inf: nobody means these in a rule
            return text
    raise _refused_tag(node)


def _refused_tag(node: yaml.Node) -> InputError:
    message = f"the tag '{node.tag[:80]}' is not allowed; write plain YAML"
    return InputError("forbidden-tag", message, where=_line(node), value=node.tag)


def _line(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"
