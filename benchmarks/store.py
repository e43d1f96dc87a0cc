"""Results as JSON lines, one per task, so that a run can be stopped and taken up again.

A record counts only while what it was computed from is unchanged: its key holds a digest of the recorded
grids and of the code it ran. A line cut short by a kill is ignored.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "fleetsieve_airflow" / "core"
#: Modules of the core that only FleetSieve's own choice of points uses.
CHOICE = {
    "acquisition.py",
    "belief.py",
    "caution.py",
    "certificate.py",
    "decision.py",
    "earlier.py",
    "priors.py",
    "proof.py",
}
#: Modules of ``benchmarks/methods`` that play FleetSieve.
OURS = ("ours", "told")
SHARED = (
    "clairvoyant.py",
    "fleets.py",
    "grids.py",
    "noise.py",
    "paper.py",
    "play.py",
    "state.py",
    "synthetic.py",
)


class Store:
    """Results by key in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records: dict[str, Any] = {}
        if path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    record = json.loads(line)
                except json.JSONDecodeError:
                    continue
                self._records[record["key"]] = record["result"]

    def __contains__(self, key: str) -> bool:
        return key in self._records

    def __getitem__(self, key: str) -> Any:
        return self._records[key]

    def add(self, key: str, result: Any) -> None:
        """Append one result."""
        self._records[key] = result
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, "result": result}) + "\n")


def digest_of(paths: Iterable[Path]) -> str:
    """Return a short digest of some files' names and contents."""
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update(path.name.encode())
        total.update(_program(path) if path.suffix == ".py" else path.read_bytes())
    return total.hexdigest()[:12]


def _program(path: Path) -> bytes:
    """Return what a module does, without its comments, docstrings and layout."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = None
    return ast.dump(tree).encode()


def code_digest(method: str | None) -> str:
    """Return the digest of the code that a method's results depend on.

    :param method: the module name in ``benchmarks/methods``; None for what depends on no method.
    """
    core = [path for path in CORE.glob("*.py") if method in OURS or path.name not in CHOICE]
    here = ROOT / "benchmarks"
    files = [*core, *(path for name in SHARED if (path := here / name).is_file())]
    if method is not None:
        names = OURS if method in OURS else (method,)
        files += [here / "methods" / f"{name}.py" for name in ("base", *names)]
    return digest_of(files)
