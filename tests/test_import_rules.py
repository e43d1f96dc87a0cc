"""Which room may import which: read from the source, so that a new module is held to its room's rule too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

PACKAGE = "fleetsieve_airflow"
ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / PACKAGE
LINES_MAX = 400
FUNCTION_LINES_MAX = 50

RECORDS = {"engine_config", "errors", "records", "evidence", "serialization"}
SPEC = {
    "feasibility", "ladders", "spec", "spec_checks", "spec_files", "spec_problems", "spec_schema",
    "spec_values", "spec_yaml",
}  # fmt: skip
#: Room -> what its modules may import of ours, beside modules of the same room. A name allows all below it.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "engine_config": {"errors"},
    "records": {"engine_config", "errors"},
    "evidence": {"errors", "records"},
    "serialization": RECORDS,
    "releases": RECORDS,
    **dict.fromkeys(SPEC, RECORDS | SPEC | {"backends.base", "backends.grid"}),
    "core": RECORDS,
    "simulator": RECORDS | {"feasibility"},
    "serving": RECORDS,
    "reporting": RECORDS,
    # A replica is deployed by the command and the variables it was measured with.
    "deployment": RECORDS | {"serving.engine", "serving.options"},
    "backends": RECORDS | {"serving", "simulator", "hooks", "triggers"},
    "hooks": RECORDS | {"serving", "reporting"},
    "triggers": RECORDS | {"hooks", "releases", "serving"},
    "campaign": RECORDS | {"backends", "core"},
    "prior": RECORDS | {"backends", "core", "simulator"},
    "campaign_files": RECORDS | {"campaign", "reporting"},
    "links": set(),
    "operators": RECORDS
    | SPEC
    | {
        "backends",
        "campaign",
        "core",
        "deployment",
        "hooks",
        "links",
        "prior",
        "releases",
        "reporting",
        "simulator",
        "triggers",
    },
    "dag": RECORDS | {"operators"},
    "dag_release": {"operators", "releases", "triggers"},
    "cli": RECORDS
    | SPEC
    | {
        "backends",
        "campaign",
        "campaign_files",
        "core",
        "deployment_command",
        "prior",
        "reporting",
        "simulator",
    },
    "deployment_command": RECORDS | {"core", "deployment"},
    "plugin": {"plugin_app", "plugin_webhook"},
    "plugin_app": RECORDS | {"hooks", "plugin_pages", "reporting"},
    "plugin_webhook": RECORDS | {"hooks", "releases"},
    "plugin_pages": RECORDS | {"hooks", "reporting"},
    "provider_info": set(),
    "demo": RECORDS | SPEC | {"hooks", "reporting"},
}
#: Room -> packages of others that it must not import, not even inside a function.
FORBIDDEN: dict[str, set[str]] = {
    "core": {
        "airflow", "asyncio", "datetime", "mlflow", "os", "pandas", "paramiko", "random", "requests",
        "secrets", "socket", "subprocess", "threading", "time", "urllib", "vllm",
    },
    "simulator": {"airflow", "mlflow", "pandas"},
    "reporting": {"airflow", "mlflow", "plotly"},
    "deployment": {"airflow", "mlflow"},
    "serving": {"airflow", "mlflow", "paramiko"},
    "operators": {"mlflow", "paramiko", "subprocess"},
    "dag": {"mlflow", "numpy", "pandas", "pulp", "scipy"},
    "dag_release": {"mlflow", "numpy", "pandas", "pulp", "scipy"},
    "releases": {"airflow", "mlflow"},
}  # fmt: skip
#: The one reader of another project's tables, which come as Parquet and are joined before they are used.
EXCEPTIONS = {("simulator.aic_database", "pandas")}
#: What Airflow imports whenever it parses a DAG file or starts a server.
PARSED = (
    "dag", "dag_release", "links", "operators", "plugin", "plugin_app", "plugin_pages", "plugin_webhook",
    "provider_info", "releases", "triggers",
)  # fmt: skip
HEAVY = {"highspy", "matplotlib", "mlflow", "numpy", "pandas", "pulp", "pyarrow", "scipy"}


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module: its dotted name, the line, and whether importing the importer imports it."""

    name: str
    line: int
    at_import: bool


def modules() -> dict[str, Path]:
    """Dotted name below the package -> file; a package stands for its ``__init__``."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = path
    return found


MODULES = modules()


def room_of(module: str) -> str:
    return module.split(".", maxsplit=1)[0]


@cache
def imports_of(path: Path) -> tuple[Import, ...]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return tuple(_imports(tree.body, at_import=True))


def _imports(body: list[ast.stmt], *, at_import: bool) -> Iterator[Import]:
    for node in body:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, at_import) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative imports hide the room"
            for alias in node.names:
                yield Import(f"{node.module}.{alias.name}", node.lineno, at_import)
        else:
            typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            later = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or typing_only
            for field in ("body", "orelse", "finalbody"):
                yield from _imports(getattr(node, field, []), at_import=at_import and not later)
            for handler in getattr(node, "handlers", []):
                yield from _imports(handler.body, at_import=at_import and not later)


def ours(item: Import) -> str | None:
    """The module of ours that an import names, without the name it takes from it."""
    if item.name.split(".")[0] != PACKAGE:
        return None
    name = item.name.removeprefix(PACKAGE).lstrip(".")
    return name if name in MODULES else name.rpartition(".")[0]


def is_allowed(target: str, allowed: set[str]) -> bool:
    return any(target == name or target.startswith(f"{name}.") for name in allowed)


@pytest.mark.parametrize("module", [name for name in MODULES if name])
def test_a_module_imports_only_what_its_room_may(module: str) -> None:
    room = room_of(module)
    assert room in ALLOWED, f"{module}: a new room; say in ALLOWED what it may import"
    wrong = [
        f"line {item.line}: {target}"
        for item in imports_of(MODULES[module])
        if (target := ours(item)) and room_of(target) != room and not is_allowed(target, ALLOWED[room])
    ]
    assert not wrong, f"{module} may import {sorted(ALLOWED[room])}, but imports {wrong}"


@pytest.mark.parametrize("room", sorted(FORBIDDEN))
def test_a_room_keeps_clear_of_what_is_not_its_business(room: str) -> None:
    wrong = [
        f"{module}, line {item.line}: {item.name}"
        for module, path in MODULES.items()
        if room_of(module) == room
        for item in imports_of(path)
        if (package := item.name.split(".")[0]) in FORBIDDEN[room] and (module, package) not in EXCEPTIONS
    ]
    assert not wrong


@pytest.mark.parametrize("module", [name for name in MODULES if room_of(name) in PARSED])
def test_parsing_a_dag_file_imports_nothing_heavy(module: str) -> None:
    chain = {module: module}
    waiting = [module]
    while waiting:
        current = waiting.pop()
        for item in imports_of(MODULES[current]):
            if not item.at_import:
                continue
            assert item.name.split(".")[0] not in HEAVY, (
                f"{chain[current]} imports {item.name} (line {item.line})"
            )
            target = ours(item)
            # Importing a module runs the __init__ of every package above it.
            for name in (target, *_packages_above(target)) if target else ():
                if name not in chain:
                    chain[name] = f"{chain[current]} -> {name}"
                    waiting.append(name)


def _packages_above(module: str) -> Iterator[str]:
    while "." in module:
        module = module.rpartition(".")[0]
        yield module


def test_the_core_has_no_clock_no_randomness_and_no_environment() -> None:
    wrong = []
    for module, path in MODULES.items():
        if room_of(module) != "core":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            if text.endswith((".environ", ".random", ".now", ".utcnow")) or text.startswith("open("):
                wrong.append(f"{module}, line {node.lineno}: {text}")
    assert not wrong


def test_the_links_at_the_top_are_names_of_the_repository_and_never_imported() -> None:
    for alias in ("operators", "hooks"):
        link = ROOT / alias
        assert link.is_symlink()
        assert link.resolve() == SOURCE / alias
    python = [
        path for folder in (PACKAGE, "dags", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")
    ]
    wrong = [
        f"{path.relative_to(ROOT)}, line {item.line}"
        for path in python
        for item in imports_of(path)
        if item.name.split(".")[0] in ("operators", "hooks", "dags")
    ]
    assert not wrong


def test_modules_and_functions_stay_short_and_have_a_subject() -> None:
    wrong = [
        f"{module}: utils has no subject"
        for module in MODULES
        if module.split(".")[-1] in ("utils", "helpers")
    ]
    for module, path in MODULES.items():
        text = path.read_text(encoding="utf-8")
        lines = len(text.splitlines())
        if lines > LINES_MAX:
            wrong.append(f"{module}: {lines} lines, at most {LINES_MAX}")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                documented = ast.get_docstring(node) is not None and len(node.body) > 1
                first = node.body[1 if documented else 0]
                length = (node.end_lineno or node.lineno) - first.lineno + 1
                if length > FUNCTION_LINES_MAX:
                    wrong.append(f"{module}.{node.name}: {length} lines, at most {FUNCTION_LINES_MAX}")
    assert not wrong
