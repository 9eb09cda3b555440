"""YAML that people write: plain data, or a refusal that names the line.

It may come from anybody: nothing is built that is deeper or larger than the limits, nor anything but plain data.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import yaml

from paceline.core.errors import InputError, located

_TAG = "tag:yaml.org,2002:"
_SCALARS = ("str", "null", "bool", "int", "float", "timestamp")
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def standard_scalar(kind: str, text: str) -> Any:
    """The value that YAML 1.1 gives a scalar."""
    return yaml.constructor.SafeConstructor().construct_object(yaml.ScalarNode(_TAG + kind, text))


def read_yaml(
    text: str,
    where: str = "",
    *,
    most_bytes: int = 2**24,
    deepest: int = 30,
    most_values: int = 1_000_000,
    takes_aliases: bool = True,
    scalar: Callable[[str, str], Any] = standard_scalar,
    key_of: Callable[[Any], Any] = lambda key: key,
) -> Any:
    """What a document holds; `scalar` makes a value of a kind (such as `int`) and a text, `key_of` a key of a value."""
    with located(where):
        if len(text.encode("utf-8", "surrogatepass")) > most_bytes:
            raise InputError("too-many-bytes", f"at most {most_bytes // 1024} KiB are taken")
        try:
            _check_events(text, deepest, takes_aliases)
            root = yaml.compose(text, Loader=_LOADER)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            is_tab = mark is not None and text[mark.index : mark.index + 1] == "\t"
            hint = "; YAML is indented with spaces, not with tabs" if is_tab else ""
            # An end without a line break is, to libyaml, on the line after the last.
            line = f"line {min(mark.line, text.count(chr(10))) + 1}" if mark else ""
            raise InputError("not-yaml", f"not valid YAML: {error.problem}{hint}", where=line) from None
        except (yaml.YAMLError, ValueError) as error:
            raise InputError("not-yaml", f"not valid YAML: {' '.join(str(error).split())}") from None
        return _Builder(deepest, most_values, scalar, key_of).build(root) if root is not None else None


def _check_events(text: str, deepest: int, takes_aliases: bool) -> None:
    """Look at the events alone, one by one: a nested document must not even be composed."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.AliasEvent) and not takes_aliases:
            message = f"write out what '*{event.anchor}' stands for"
            raise InputError("yaml-alias", message, where=_line(event), value=event.anchor)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > deepest:
            raise InputError("too-deep", f"nested more than {deepest} deep", where=_line(event))


def _line(part: Any) -> str:
    return f"line {part.start_mark.line + 1}"


@dataclass
class _Builder:
    """Makes plain data of nodes; every alias counts as if it were written out."""

    deepest: int
    most_values: int
    scalar: Callable[[str, str], Any]
    key_of: Callable[[Any], Any]
    values: int = 0
    open: list[yaml.Node] = field(default_factory=list)  # from the root to the node that is being built

    def build(self, node: yaml.Node) -> Any:
        self.values += 1
        if self.values > self.most_values:
            raise InputError("too-many-values", f"more than {self.most_values:,} values, with aliases written out")
        if node in self.open:
            raise InputError("endless-anchor", "an anchor holds itself", where=_line(node))
        if len(self.open) > self.deepest:  # by aliases of aliases
            raise InputError("too-deep", f"nested more than {self.deepest} deep", where=_line(node))
        self.open.append(node)
        kind = node.tag.removeprefix(_TAG)
        if isinstance(node, yaml.MappingNode) and kind == "map":
            value: Any = self.mapping(node)
        elif isinstance(node, yaml.SequenceNode) and kind == "seq":
            value = [self.build(item) for item in node.value]
        elif isinstance(node, yaml.ScalarNode) and kind in _SCALARS:
            with located(_line(node)):
                try:
                    value = self.scalar(kind, node.value)
                except (ValueError, LookupError, AttributeError):  # such as a date that does not exist
                    raise InputError("not-yaml", f"not valid YAML: '{node.value[:80]}' is no {kind}") from None
        else:
            message = f"the tag '{node.tag[:80]}' is not allowed; write plain YAML"
            raise InputError("forbidden-tag", message, where=_line(node), value=node.tag)
        self.open.pop()
        return value

    def mapping(self, node: yaml.MappingNode) -> dict[Any, Any]:
        entries: dict[Any, Any] = {}
        merged: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            line = _line(key_node)
            if key_node.tag == f"{_TAG}merge":  # '<<: *anchor': what it brings may be overridden
                value = self.build(value_node)
                for one in value if isinstance(value, list) else [value]:
                    if not isinstance(one, dict):
                        raise InputError("not-a-mapping", "'<<' takes a mapping", where=line, key="<<", value=one)
                    merged = {**one, **merged}
                continue
            key = self.key_of(self.build(key_node))
            if not isinstance(key, Hashable):
                raise InputError("not-yaml", "not valid YAML: a key is neither a list nor a mapping", where=line)
            if key in entries:
                message = f"duplicate key '{str(key)[:80]}'; leave one of them out"
                raise InputError("duplicate-key", message, where=line, key=str(key))
            entries[key] = self.build(value_node)
        return {**merged, **entries}
