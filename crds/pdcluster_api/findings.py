"""From pydantic's errors to problems that name field, value and remedy.

Pure. The only place that knows pydantic's error types.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from pdcluster_api.problems import Path, Problem, format_path
from pdcluster_api.rules import RATIO_PATTERN, Rule
from pdcluster_api.v1alpha1 import PDCluster
from pdcluster_api.v1alpha1.engine import ABSOLUTE_PATH_PATTERN, VARIABLE_PATTERN
from pdcluster_api.v1alpha1.kv_transfer import BACKEND_PATTERN
from pdcluster_api.v1alpha1.shape import BROKEN_RULES

__all__ = ["FORMS", "problems_of"]


def problems_of(error: ValidationError, data: object) -> tuple[Problem, ...]:
    """Return one problem per thing pydantic found wrong.

    Args:
        error: What validating ``data`` as a PDCluster raised.
        data: The plain data, for the values.
    """
    return tuple(
        problem
        for details in error.errors(include_url=False)
        for problem in _problems(details, data)
    )


def _problems(details: ErrorDetails, data: object) -> Iterator[Problem]:
    path: Path = tuple(details["loc"])
    kind = details["type"]
    context = details.get("ctx", {})
    if kind == BROKEN_RULES:
        for rule in context["broken"]:
            yield _broken(rule, path, data)
    elif kind == "extra_forbidden":
        yield Problem(path=path, message=f"unknown field; {_suggestion(path)}")
    elif kind == "too_short" and _is_long_enough(details["input"], context):
        # pydantic counts valid items only; the others have their own problems.
        return
    elif kind == "missing":
        yield Problem(path=path, message=f"is required; {_addition(path)}")
    else:
        phrase = _PHRASES.get(kind)
        message = phrase(context) if phrase is not None else details["msg"]
        yield Problem(path=path, value=_shown(details["input"]), message=message)


def _is_long_enough(value: object, context: Mapping[str, object]) -> bool:
    least = context.get("min_length")
    return isinstance(value, list) and isinstance(least, int) and len(value) >= least


def _broken(rule: Rule[object], path: Path, data: object) -> Problem:
    full = path + tuple(rule.field.split(".")) if rule.field else path
    found, value = _look_up(data, full)
    return Problem(
        path=full,
        value=_shown(value) if found and not isinstance(value, dict | list) else None,
        message=rule.message,
    )


def _counted(unit: str, bound: str, limit: object) -> str:
    return (unit.removesuffix("s") if limit == 1 else unit).format(f"{bound} {limit}")


def _at_most(unit: str) -> Callable[[Mapping[str, object]], str]:
    def phrase(context: Mapping[str, object]) -> str:
        limit = context.get("le", context.get("max_length"))
        return f"must {_counted(unit, 'at most', limit)}"

    return phrase


def _at_least(unit: str) -> Callable[[Mapping[str, object]], str]:
    def phrase(context: Mapping[str, object]) -> str:
        limit = context.get("ge", context.get("min_length"))
        return f"must {_counted(unit, 'at least', limit)}"

    return phrase


def _says(text: str) -> Callable[[Mapping[str, object]], str]:
    return lambda context: text.format(**context)


def _form(context: Mapping[str, object]) -> str:
    return f"must be {FORMS[str(context['pattern'])]}"


FORMS: Final[Mapping[str, str]] = {
    RATIO_PATTERN: "two whole numbers from 1 to 9999 with a colon between them, like '2:1'",
    ABSOLUTE_PATH_PATTERN: "an absolute path: it begins with a slash, like /models",
    BACKEND_PATTERN: (
        "the name of a NIXL backend: capitals, digits and underscores, a capital first, like UCX"
    ),
    VARIABLE_PATTERN: (
        "the name of a variable: letters, digits and underscores, no digit first, like NCCL_DEBUG"
    ),
}
"""What a pattern demands, in words and with an example; every pattern of the spec has a row."""

_PHRASES: Final[Mapping[str, Callable[[Mapping[str, object]], str]]] = {
    "bool_type": _says("must be true or false"),
    "dict_type": _says("must be a mapping (key: value)"),
    "enum": _says("must be {expected}"),
    "greater_than_equal": _at_least("be {}"),
    "int_from_float": _says("must be a whole number"),
    "int_type": _says("must be a whole number, without unit or quotes"),
    "less_than_equal": _at_most("be {}"),
    "literal_error": _says("must be {expected}"),
    "model_type": _says("must be a mapping (key: value)"),
    "string_pattern_mismatch": _form,
    "string_too_long": _at_most("have {} characters"),
    "string_too_short": _at_least("have {} characters"),
    "string_type": _says("must be text; put quotes around it"),
    "too_long": _at_most("have {} items"),
    "too_short": _at_least("have {} items"),
    "tuple_type": _says("must be a list (- item)"),
}
"""pydantic's error types to the words of a message."""


def _shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _look_up(data: object, path: Path) -> tuple[bool, object]:
    for step in path:
        if isinstance(data, list):
            data = dict(enumerate(data))
        if not isinstance(data, Mapping) or step not in data:
            return False, None
        data = data[step]
    return True, data


# --- the schema, for suggestions ---------------------------------------------------------------


def _fields_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {info.alias or name: info for name, info in model.model_fields.items()}


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def _model_at(path: Path) -> type[BaseModel] | None:
    model: type[BaseModel] = PDCluster
    for step in path:
        if isinstance(step, int):
            continue
        info = _fields_of(model).get(step)
        below = next(_models_in(info.annotation), None) if info is not None else None
        if below is None:
            return None
        model = below
    return model


def _all_paths(model: type[BaseModel], path: Path) -> Iterator[Path]:
    for name, info in _fields_of(model).items():
        here = (*path, name)
        yield here
        for below in _models_in(info.annotation):
            yield from _all_paths(below, here)


def _description(path: Path) -> str:
    model = _model_at(path[:-1])
    info = _fields_of(model).get(str(path[-1])) if model is not None else None
    return " ".join((info.description or "").split()) if info is not None else ""


def _addition(path: Path) -> str:
    """Say what to add for a field that is missing: itself, and what it must hold."""
    model, name = _model_at(path), str(path[-1])
    needed = (
        [field for field, info in _fields_of(model).items() if info.is_required()]
        if model is not None
        else []
    )
    if not needed:
        return f"add {name}. {_description(path)}".rstrip()
    below = "; ".join(f"{field}: {_description((*path, field))}" for field in needed)
    return f"add {name} with {' and '.join(needed)} below it. {below}".rstrip()


def _suggestion(path: Path) -> str:
    """Say what an unknown field may have been meant to be."""
    name, parent = str(path[-1]), path[:-1]
    model = _model_at(parent)
    known = list(_fields_of(model)) if model is not None else []
    close = difflib.get_close_matches(name.lower(), [field.lower() for field in known], n=1)
    if close:
        field = next(field for field in known if field.lower() == close[0])
        return f"did you mean {field}?"
    elsewhere = [
        format_path(candidate)
        for candidate in _all_paths(PDCluster, ())
        if candidate[0] == "spec" and candidate[-1] == name
    ]
    if elsewhere:
        return f"it belongs to {' or '.join(elsewhere)}"
    return f"known here: {', '.join(known)}" if known else "remove it"
