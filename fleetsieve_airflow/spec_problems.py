"""What is wrong with a fleet file, collected until all of it can be said at once.

Every problem is one line: key path, file and line where known, what is allowed, the value, the remedy.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from fleetsieve_airflow.errors import SpecError
from fleetsieve_airflow.spec_yaml import KeyPath

_VALUE_LENGTH = 80
#: Pydantic's error types whose own words would not help the writer of a YAML file.
_MUST_BE = {
    "float_type": "must be a number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "bool_type": "must be true or false",
    "string_type": "must be text (put it in quotes)",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "finite_number": "must be a finite number",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
    "greater_than": "must be above {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be below {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "literal_error": "must be {expected}",
}


class Problems:
    """Collects problems of one fleet file.

    :param file: the file's name as the reader knows it; empty when the fleet came as a mapping.
    :param lines: line of each key path in that file.
    """

    def __init__(self, file: str = "", lines: Mapping[KeyPath, int] | None = None) -> None:
        self._file = file
        self._lines = lines or {}
        self._texts: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._texts)

    def add(self, path: KeyPath, must: str, remedy: str = "") -> None:
        """Add one problem; ``must`` completes the sentence "this key ..."."""
        line = self._line(path)
        place = " ".join(filter(None, [self._file, f"line {line}" if line and self._file else ""]))
        where = f" ({place})" if place else ""
        self._texts[f"{path_text(path)}{where}: {must}. {remedy}".rstrip()] = line

    def add_value(self, path: KeyPath, must: str, value: Any, remedy: str = "") -> None:
        """Add one problem of a value."""
        self.add(path, f"{must}, got {value_text(value)}", remedy)

    def add_unknown(self, path: KeyPath, what: str, name: Any, known: Iterable[str]) -> None:
        """Add a name that nothing of that kind has."""
        names = list(known)
        near = difflib.get_close_matches(str(name), names, n=1)
        remedy = f"Did you mean {near[0]}?" if near else f"Use one of these, or add the {what}."
        self.add_value(path, f"must be a known {what} ({', '.join(names)})", name, remedy)

    def add_validation(self, error: ValidationError, model: type[BaseModel]) -> None:
        """Add everything that pydantic found."""
        for detail in error.errors(include_url=False):
            self._add_detail(detail, model)

    def raise_any(self) -> None:
        """Raise what was collected.

        :raises SpecError: one line per problem, in the order of the file.
        """
        if self._texts:
            raise SpecError("\n".join(sorted(self._texts, key=lambda text: self._texts[text])))

    def _add_detail(self, detail: ErrorDetails, model: type[BaseModel]) -> None:
        is_key = detail["loc"][-1:] == ("[key]",)
        path = tuple(detail["loc"][:-1] if is_key else detail["loc"])
        kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
        field, siblings = _described(model, path)
        remedy = (field.description or "") if field else ""
        if kind == "missing":
            self.add(path, "is missing", remedy)
        elif kind == "extra_forbidden":
            near = difflib.get_close_matches(str(path[-1]), siblings, n=1)
            self.add(
                path,
                f"is not a known key ({', '.join(siblings)})",
                f"Did you mean {near[0]}?" if near else "",
            )
        elif kind == "refused":
            # A mapping that is wrong as a whole says its own values; printing it again would hide them.
            is_whole = isinstance(value, dict)
            must = context["must"]
            self.add(path, must, remedy) if is_whole else self.add_value(
                path, must, value, "" if is_key else remedy
            )
        else:
            self.add_value(path, _must_be(kind, context, detail["msg"]), value, remedy)

    def _line(self, path: KeyPath) -> int:
        """Return the line of a key, or of the nearest one around a key that is missing; 0: not known."""
        known = (self._lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self._lines)
        return next(known, 0)


def path_text(path: KeyPath) -> str:
    """Return a key path as it is written in messages, e.g. ``workloads.chat.loads.offered_load_rps[2]``."""
    text = ""
    for part in path:
        word = part if isinstance(part, int) or part.isprintable() else repr(part)
        text += f"[{word}]" if isinstance(part, int) else f"{'.' if text else ''}{word}"
    return text or "the fleet file"


def value_text(value: Any) -> str:
    """Return a value as a message shows it: cut when long."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= _VALUE_LENGTH else f"{text[:_VALUE_LENGTH]} ..."


def _must_be(kind: str, context: Mapping[str, Any], message: str) -> str:
    return _MUST_BE[kind].format(**context) if kind in _MUST_BE else message


def _described(model: type[BaseModel], path: KeyPath) -> tuple[FieldInfo | None, list[str]]:
    """Return the nearest described field on the way to a path, and the keys allowed in its last mapping."""
    current: Any = model
    found: FieldInfo | None = None
    for part in path:
        if isinstance(current, type) and issubclass(current, BaseModel):
            fields = {field.alias or name: field for name, field in current.model_fields.items()}
            if part not in fields:
                return found, list(fields)
            found = fields[str(part)]
            current = _model_in(found.annotation)
        else:
            current = _model_in(typing.get_args(current)[-1]) if typing.get_args(current) else None
    return found, []


def _model_in(annotation: Any) -> Any:
    """Strip ``| None`` and ``Annotated`` from an annotation."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _model_in(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return _model_in(next(arg for arg in typing.get_args(annotation) if arg is not type(None)))
    return annotation
