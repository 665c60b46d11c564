"""What every part of the resource has in common: the model class and the field types.

Pure. A field's docstring is what ``kubectl explain`` shows; bounds and patterns that one field
alone can state are in its type, so that the CRD and the models cannot differ.
"""

# No `from __future__ import annotations` here nor in the models: pydantic evaluates annotations.

import re
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)
from pydantic import StringConstraints as Text
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from pdcluster_api import defaults
from pdcluster_api.rules import ARGUMENT_RULES, LABEL_RULES, Rule, broken_rules

__all__ = [
    "BROKEN_RULES",
    "Arguments",
    "ImageName",
    "Labels",
    "ListMap",
    "Obeys",
    "ObjectName",
    "OpenObject",
    "Port",
    "Quantities",
    "Seconds",
    "Spec",
    "Words",
]

BROKEN_RULES = "pdcluster_rules"
"""Type of the pydantic error that carries broken rules in ``ctx["broken"]``."""

_VALIDATIONS = "x-kubernetes-validations"


def _reject(rules: Sequence[Rule[Any]], node: object) -> None:
    # Any: a rule's type parameter is the node's class, which pydantic alone knows here.
    broken = broken_rules(rules, node)
    if broken:
        told = "; ".join(rule.message for rule in broken)
        raise PydanticCustomError(BROKEN_RULES, "{told}", {"told": told, "broken": broken})


def _as_validations(rules: Sequence[Rule[Any]]) -> list[dict[str, str]]:
    # Any: as above.
    rendered = []
    for rule in rules:
        validation = {"rule": rule.cel, "message": rule.message}
        # The schema has no properties below metadata, so a rule cannot point there.
        if rule.field and not rule.field.startswith("metadata."):
            validation["fieldPath"] = f".{rule.field}"
        rendered.append(validation)
    return rendered


class Spec(BaseModel):
    """A part of the resource: frozen, strict, camelCase outside, and rejects what it does not know.

    Attributes:
        obeys: The rules between this part's fields; checked here and rendered into the CRD.
    """

    obeys: ClassVar[tuple[Rule[Any], ...]] = ()

    @staticmethod
    def _extra_schema(schema: dict[str, Any], model: type["Spec"]) -> None:
        # Any: pydantic's type of a JSON schema.
        if model.obeys:
            schema[_VALIDATIONS] = _as_validations(model.obeys)

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
        json_schema_extra=_extra_schema,
    )

    @model_validator(mode="after")
    def _obey(self) -> Self:
        _reject(type(self).obeys, self)
        return self


class OpenObject(Spec):
    """An object whose fields are Kubernetes' own or another project's: kept as it is."""

    model_config = ConfigDict(extra="allow")


class Obeys:
    """Field metadata: the rules of a list, a map or a plain value."""

    def __init__(self, *rules: Rule[Any]) -> None:
        self._rules = rules

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Check the rules after the value's own type."""

        def obey(node: object) -> object:
            _reject(self._rules, node)
            return node

        return core_schema.no_info_after_validator_function(obey, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Render the rules beside the value's own schema."""
        # Any: pydantic's type of a JSON schema.
        rendered = dict(handler(schema))
        rendered[_VALIDATIONS] = _as_validations(self._rules)
        return rendered


class ListMap:
    """Field metadata: a list that Kubernetes merges by a key, in which a key may stand once."""

    def __init__(self, key: str) -> None:
        self._key = key

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Reject a key that stands twice, as the API server does."""

        def once(items: Sequence[object]) -> Sequence[object]:
            seen = set()
            for index, item in enumerate(items):
                key = getattr(item, self._key)
                if key in seen:
                    raise PydanticCustomError(
                        "duplicate_key",
                        "[{index}].{key} is {value} a second time; each may stand once",
                        {"index": index, "key": self._key, "value": repr(key)},
                    )
                seen.add(key)
            return items

        return core_schema.no_info_after_validator_function(once, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Tell the API server how to merge."""
        # Any: pydantic's type of a JSON schema.
        return {
            **handler(schema),
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": [self._key],
        }


Seconds = Annotated[int, Field(ge=1, le=86_400)]
"""A span of whole seconds, up to a day."""

Port = Annotated[int, Field(ge=1024, le=65_535)]
"""A port an unprivileged process may bind."""

ObjectName = Annotated[str, Text(min_length=1, max_length=253)]
"""Name of another object, or of a key in it."""

ImageName = Annotated[str, Text(max_length=512)]
"""A container image."""

_Word = Annotated[str, Text(max_length=defaults.ARGUMENT_MAX_CHARS)]
_ATOMIC = {"x-kubernetes-list-type": "atomic"}
Words = Annotated[
    tuple[_Word, ...], Field(max_length=defaults.ARGUMENTS_MAX, json_schema_extra=_ATOMIC)
]
"""Words of a command line."""

Arguments = Annotated[Words, Obeys(*ARGUMENT_RULES)]
"""Further words of an engine's command line; what the operator owns is rejected."""

_LabelValue = Annotated[str, Text(max_length=63)]
Labels = Annotated[dict[str, _LabelValue], Field(max_length=32), Obeys(*LABEL_RULES)]
"""Further labels; the operator's are rejected."""

_QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei)?$"


def _is_quantity(value: object) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and len(value) <= _QUANTITY_MAX and re.match(_QUANTITY, value):
        return value
    raise PydanticCustomError(
        "quantity", "must be a quantity of Kubernetes, such as 2, 500m, 1.5 or 64Gi"
    )


_QUANTITY_MAX = 32
_Quantity = Annotated[
    int | str,
    # One check instead of a union's two, so that a wrong one is told once.
    PlainValidator(_is_quantity),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            # The pattern is for words alone; found by a real API server, which took -1.
            "minimum": 0,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": _QUANTITY,
            "maxLength": _QUANTITY_MAX,
        }
    ),
]
Quantities = Annotated[dict[str, _Quantity], Field(max_length=16)]
"""Quantity per resource name."""
