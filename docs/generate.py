"""Write what the documentation takes from the code: the tables of the fleet file, and the reference.

    python docs/generate.py

The tables in ``fleet-file.md`` stand between marks and come from the schema that fleet files are read with,
their examples from ``every-key.yaml``; ``reference.md`` comes from docstrings. A test says when either is out
of date.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from fleetsieve_airflow.spec_schema import FleetFile

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent / "fleetsieve_airflow"
FLEET_FILE, REFERENCE, EVERY_KEY = HERE / "fleet-file.md", HERE / "reference.md", HERE / "every-key.yaml"
BEGIN, END = "<!-- keys: written by make docs-reference -->", "<!-- end of keys -->"
#: Keys whose written form is another than their value's.
WRITTEN = {"measurement.reuse_max_age": "length of time", "decision.certify_on": "list of sources"}
#: Mappings whose keys are names that the file's author chooses.
NAMED = ("pools", "models", "engine_configs", "workloads", "workloads.*.loads_by_config")
#: Chapter of the reference -> modules, and which of their public names it lists.
CHAPTERS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "DAGs and assets": (("dag.py",), r"[a-z]\w+"),
    "Operators": (("operators/*.py",), r"\w+Operator"),
    "Hooks": (("hooks/mlflow.py", "hooks/slurm.py"), r"\w+Hook"),
    "Triggers": (("triggers/*.py",), r"\w+Trigger"),
}
#: Functions of ``dag.py`` that DAG files call; its other names are its own.
CALLED = ("fleet_plan", "plan_asset")


def main() -> None:
    """Write both."""
    FLEET_FILE.write_text(fleet_file(FLEET_FILE.read_text(encoding="utf-8")), encoding="utf-8")
    REFERENCE.write_text(reference(), encoding="utf-8")


def fleet_file(text: str) -> str:
    """Return the page with its tables written anew."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{FLEET_FILE.name} lacks the marks {BEGIN} and {END}.")
    tables = "\n\n".join(_table(path, body) for path, body in sections().items())
    return f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}"


def sections() -> dict[str, dict[str, Any]]:
    """Return path -> JSON schema of every mapping of a fleet file; ``*`` stands for a name of one's own."""
    schema = FleetFile.model_json_schema()
    found: dict[str, dict[str, Any]] = {}

    def walk(path: str, body: dict[str, Any]) -> None:
        found[path] = body
        for name, value in body["properties"].items():
            own = f"{path}.{name}".lstrip(".")
            for part in (value, *value.get("anyOf", ())):
                for inner, place in ((part, own), (part.get("additionalProperties"), f"{own}.*")):
                    if isinstance(inner, dict) and "$ref" in inner:
                        walk(place, schema["$defs"][inner["$ref"].rpartition("/")[2]])

    walk("", schema)
    return {path: body for path, body in found.items() if path != "workloads.*.loads_by_config.*"}


def keys() -> Iterator[tuple[str, str, dict[str, Any], bool]]:
    """Return (path of its mapping, path, JSON schema, required) of every key of a fleet file."""
    for path, body in sections().items():
        for name, value in body["properties"].items():
            yield path, f"{path}.{name}".lstrip("."), value, name in body.get("required", ())


def examples() -> dict[str, str]:
    """Return an example of every key, by its path, from ``every-key.yaml``."""
    found: dict[str, str] = {}

    def collect(value: Any, path: str) -> None:
        shown = yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()
        found.setdefault(path, shown)
        for name, inner in value.items() if isinstance(value, dict) else ():
            collect(inner, f"{path}.{'*' if path in NAMED else name}".lstrip("."))

    collect(yaml.safe_load(EVERY_KEY.read_text(encoding="utf-8")), "")
    return found


def _table(path: str, body: dict[str, Any]) -> str:
    shown = examples()
    title = f"`{path}`".replace(".*", ".NAME") if path else "The file"
    rows = ["| key | value | default | example | |", "|---|---|---|---|---|"]
    for mapping, key, schema, required in keys():
        if mapping != path:
            continue
        default = "**required**" if required else _code(_default(schema))
        example = _code(_short(shown.get(key, "")))
        words = [f"`{key.rpartition('.')[2]}`", WRITTEN.get(key) or _kind(schema), default, example]
        rows.append(f"| {' | '.join([*words, schema['description'].replace('|', '&#124;')])} |")
    return "\n".join([f"### {title}", "", body["description"], "", *rows])


def _short(text: str) -> str:
    return text if len(text) <= 60 else "see above"  # noqa: PLR2004 - what a table has room for


def _code(text: str) -> str:
    return text if text in ("", "see above") else f"`{text}`"


def _default(schema: dict[str, Any]) -> str:
    value = schema.get("default")
    if value is None or value in ("", {}) or isinstance(value, dict):
        return ""
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").strip()


def _kind(schema: dict[str, Any]) -> str:
    """Return the kind of a value in words."""
    if "anyOf" in schema:
        return " or ".join(
            dict.fromkeys(_kind(part) for part in schema["anyOf"] if part.get("type") != "null")
        )
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if "$ref" in schema or schema.get("type") == "object":
        return "mapping"
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}"
    words = {"string": "text", "boolean": "`true`, `false`", "integer": "whole number", "number": "number"}
    return words[schema["type"]] + _range(schema)


def _range(schema: dict[str, Any]) -> str:
    ends = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    return "".join(f" {word} {schema[name]:.10g}" for name, word in ends.items() if name in schema)


def reference() -> str:
    """Return the reference of what DAG files import."""
    parts = [
        "# Reference",
        "",
        "Written by `make docs-reference` from the docstrings. What Airflow's own base classes take is",
        "not repeated; *templated* parameters may hold Jinja.",
    ]
    for chapter, (patterns, names) in CHAPTERS.items():
        parts += ["", f"## {chapter}"]
        for path in sorted(file for pattern in patterns for file in PACKAGE.glob(pattern)):
            module = ".".join(("fleetsieve_airflow", *path.relative_to(PACKAGE).with_suffix("").parts))
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and re.fullmatch(names, node.name):
                    parts += _class(module, node)
                elif isinstance(node, ast.FunctionDef) and node.name in CALLED:
                    parts += _function(module, node, "###")
    return "\n".join(parts) + "\n"


def _class(module: str, node: ast.ClassDef) -> list[str]:
    parts = ["", f"### {node.name}", "", f"`from {module} import {node.name}`", "", *_markdown(node)]
    own = {"execute", "on_kill", "run", "serialize", "cleanup", "execute_complete"}
    for item in node.body:
        public = isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)) and not item.name.startswith("_")
        # What Airflow calls is Airflow's business; a hook's methods are what tasks of one's own use
        if public and node.name.endswith("Hook") and item.name not in own:
            decorated = any(
                isinstance(name, ast.Name) and name.id == "property" for name in item.decorator_list
            )
            head = item.name if decorated else f"{item.name}({_arguments(item)})"
            parts += ["", f"#### `{head}`", "", *_markdown(item)]
    return parts


def _function(module: str, node: ast.FunctionDef, level: str) -> list[str]:
    return ["", f"{level} {node.name}", "", f"`from {module} import {node.name}`", "", *_markdown(node)]


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    text = ast.unparse(node.args)
    return re.sub(r"^self(, )?", "", text)


def _markdown(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Return a docstring in reST as Markdown."""
    lines: list[str] = []
    fields: list[str] = []
    code = False
    for line in (ast.get_docstring(node) or "").splitlines():
        field = re.match(r":(param (\w+)|return|raises (\w+)):\s*(.*)", line)
        if field:
            name = field[2] or (f"raises {field[3]}" if field[3] else "returns")
            fields.append(f"- **{name}**: {field[4]}" if not field[2] else f"- `{name}`: {field[4]}")
        elif fields and line.startswith("    "):
            fields[-1] += f" {line.strip()}"
        elif line.startswith("    ") and (code or (lines and lines[-1] == "```python")):
            code = True
            lines.append(line[4:])
        else:
            if code and line.strip():
                lines.insert(_last_code(lines), "```")
                code = False
            text = line.rstrip()
            if text.endswith("::"):
                lines += ([text[:-1]] if text != "Example::" else ["Example:"]) + ["", "```python"]
            elif not (text == "" and lines and lines[-1] == "```python"):
                lines.append(text)
    if code:
        lines.insert(_last_code(lines), "```")
    text = "\n".join([*"\n".join(lines).strip().splitlines(), *([""] if fields else []), *fields])
    text = re.sub(r":\w+:`~?([^`]+)`", lambda match: f"`{match[1].rpartition('.')[2]}`", text)
    return re.sub(r"(?<!`)``([^`]+)``(?!`)", r"`\1`", text).splitlines()


def _last_code(lines: list[str]) -> int:
    """Return the place after the last line that is not empty."""
    place = len(lines)
    while not lines[place - 1].strip():
        place -= 1
    return place


if __name__ == "__main__":
    main()
