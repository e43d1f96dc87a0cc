"""Read YAML the way a person means it: keys once, lines remembered, and the scalars of YAML 1.2.

Plain YAML lets the second of two equal keys win silently, reads ``no`` as false and ``1e3`` as text: each of
them a wrong plan that nobody asked for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fleetsieve_airflow.errors import SpecError

#: A place in a document: keys of mappings and positions in lists.
KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """A document's plain data, the line of each key path, and the keys that were given twice."""

    data: Any
    lines: dict[KeyPath, int] = field(default_factory=dict)
    duplicates: tuple[KeyPath, ...] = ()


class _Loader(yaml.SafeLoader):
    """The safe loader with the core schema of YAML 1.2 for booleans and numbers."""


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern) for tag, pattern in pairs if tag.rpartition(":")[2] not in ("bool", "int", "float")
    ]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}

_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"[-+]?(?:0|[1-9][0-9]*)$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+.0123456789"),
)


def read_yaml(path: Path) -> YamlDocument:
    """Read one YAML file.

    :raises SpecError: the file cannot be read or is not one YAML document; names the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(
            f"{path}: cannot be read: {error}.", hint="Give the path of a fleet file in UTF-8."
        ) from error
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return YamlDocument(None)
        lines, duplicates = _places(root)
        return YamlDocument(loader.construct_document(root), lines, duplicates)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1} column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or error
        raise SpecError(
            f"{path}{where}: is not valid YAML: {problem}.", hint="Mend the file there."
        ) from error
    finally:
        loader.dispose()


def _places(root: yaml.Node) -> tuple[dict[KeyPath, int], tuple[KeyPath, ...]]:
    lines: dict[KeyPath, int] = {}
    duplicates: list[KeyPath] = []
    seen: set[int] = set()

    def walk(node: yaml.Node, path: KeyPath) -> None:
        # An alias is the same node again: once is enough, and a node inside itself would never end.
        if id(node) in seen:
            return
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            for position, item in enumerate(node.value):
                lines[(*path, position)] = item.start_mark.line + 1
                walk(item, (*path, position))
        if isinstance(node, yaml.MappingNode):
            given: set[str] = set()
            for key, value in node.value:
                place = (*path, str(key.value))
                if str(key.value) in given:
                    duplicates.append(place)
                given.add(str(key.value))
                lines[place] = key.start_mark.line + 1
                walk(value, place)

    walk(root, ())
    return lines, tuple(duplicates)
