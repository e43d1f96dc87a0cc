"""Values of a fleet file: names, numbers, ladders, ages and option texts, each with the words that refuse it.

Pydantic types without any mapping around them; the sections that hold them are in :mod:`.spec_schema`.
"""

from __future__ import annotations

import math
import re
import sys
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from fleetsieve_airflow.records import CERTIFIABLE_SOURCES, Source

#: Names become parts of MLflow metrics, Airflow task names, file names and job names: what all of them allow.
NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_OPTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def refuse(must: str) -> PydanticCustomError:
    """Return the error of a value; ``must`` completes the sentence "this key ..."."""
    return PydanticCustomError("refused", "{must}", {"must": must})


def _name(value: str) -> str:
    if not NAME_PATTERN.fullmatch(value) or ".." in value:
        raise refuse(
            "must be 1 to 63 letters, digits, '_', '.' or '-', start with a letter or digit and have no '..' "
            "(MLflow or Airflow would refuse it)"
        )
    return value


def _ladder(value: Any) -> Any:
    if value == "auto":
        return value
    numbers = isinstance(value, list) and all(
        isinstance(load, (int, float)) and not isinstance(load, bool) and 0 < load <= sys.float_info.max
        for load in value
    )
    if not numbers or not value:
        raise refuse("must be a list of finite numbers above 0, or auto")
    if any(low >= high for low, high in pairwise(value)):
        raise refuse("must be loads that strictly increase")
    return value


def _concurrency(value: Any) -> Any:
    if isinstance(value, list) and any(load != int(load) for load in _ladder(value)):
        raise refuse("must be whole numbers of requests in flight")
    return _ladder(value)


def _different(values: list[Any]) -> list[Any]:
    doubles = [str(value) for i, value in enumerate(values) if value in values[:i]]
    if doubles:
        raise refuse(f"must name each entry once, but repeats {', '.join(doubles)}")
    return values


def _certifiable(value: Any) -> Any:
    if value not in CERTIFIABLE_SOURCES:
        raise refuse(f"must be one of {', '.join(CERTIFIABLE_SOURCES)}")
    return value


def _option_name(value: str) -> str:
    if not _OPTION.fullmatch(value):
        raise refuse("must be an option's name: letters, digits, '_', '.' or '-', without leading dashes")
    return value


def _age_seconds(value: Any) -> float:
    match = _AGE.fullmatch(value.strip()) if isinstance(value, str) else None
    if not match or float(match[1]) <= 0:
        raise refuse("must be a length of time such as '12h' or '30d' (s, m, h, d, w)")
    return float(match[1]) * _SECONDS[match[2]]


def _scalar_text(value: Any) -> str:
    """Return the text of an engine argument or backend option; true and false stay as written."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        raise refuse("must be finite")
    if isinstance(value, (str, int, float)):
        return str(value)
    raise refuse("must be text, a number, true or false; write a JSON value as text in quotes")


Name = Annotated[str, AfterValidator(_name)]
Text = Annotated[str, Field(min_length=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Names = Annotated[list[Name], Field(min_length=1), AfterValidator(_different)]
Ladder = Annotated[list[float] | Literal["auto"], BeforeValidator(_ladder)]
Concurrency = Annotated[list[float] | Literal["auto"], BeforeValidator(_concurrency)]
Sources = Annotated[
    list[Annotated[Source, BeforeValidator(_certifiable)]], Field(min_length=1), AfterValidator(_different)
]
Options = dict[Annotated[str, AfterValidator(_option_name)], Annotated[str, BeforeValidator(_scalar_text)]]
Factors = Annotated[list[Positive], Field(min_length=1), AfterValidator(_different)]
Spread = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Age = Annotated[float, BeforeValidator(_age_seconds)]
