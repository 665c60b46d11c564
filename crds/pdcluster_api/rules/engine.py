"""Rules about what runs in an engine: words, environment, pod template.

Pure. Lists the flags and variables that only the operator may set, each with the field to use
instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pdcluster_api import defaults
from pdcluster_api.rules.rule import Rule

if TYPE_CHECKING:
    from pdcluster_api.v1alpha1.engine import EnvironmentVariable
    from pdcluster_api.v1alpha1.pod_template import ContainerTemplate

__all__ = [
    "ARGUMENT_RULES",
    "CONTAINER_RULES",
    "ENVIRONMENT_RULES",
    "LABEL_RULES",
    "OWNED_FLAGS",
    "OWNED_VARIABLES",
    "VARIABLE_RULES",
    "OwnedFlag",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedFlag:
    """Flags of the engine that only the operator may set.

    Attributes:
        names: The flags as vLLM documents them.
        message: The field to use instead.
    """

    names: tuple[str, ...]
    message: str

    @property
    def pattern(self) -> str:
        """A regular expression (RE2 and Python) for one word that sets one of the flags.

        vLLM's parser also takes ``_`` for ``-``, ``--flag=value`` and dotted JSON keys
        (``--kv-transfer-config.kv_role``).
        """
        names = (
            name if not name.startswith("--") else "--" + name[2:].replace("-", "[-_]")
            for name in self.names
        )
        return f"^({'|'.join(names)})([=.].*)?$"


OWNED_FLAGS: Final = (
    OwnedFlag(names=("--model",), message="--model is the operator's: use spec.model.name"),
    OwnedFlag(
        names=("--served-model-name",),
        message="--served-model-name is the operator's: use spec.model.servedName",
    ),
    OwnedFlag(
        names=("--revision",), message="--revision is the operator's: use spec.model.revision"
    ),
    OwnedFlag(names=("--port",), message="--port is the operator's: use spec.engine.port"),
    OwnedFlag(
        names=("--host",),
        message="--host is the operator's: an engine listens on its pod's address; leave it out",
    ),
    OwnedFlag(
        names=("--kv-transfer-config",),
        message="--kv-transfer-config is the operator's: use the fields of spec.kvTransfer",
    ),
    OwnedFlag(
        names=(
            "--tensor-parallel-size",
            "--pipeline-parallel-size",
            "--data-parallel-size",
            "-tp",
            "-pp",
            "-dp",
        ),
        message=(
            "parallel sizes are the operator's: use the role's tensorParallelSize, "
            "pipelineParallelSize, dataParallelSize"
        ),
    ),
    OwnedFlag(
        names=("--shutdown-timeout",),
        message="--shutdown-timeout follows from the lease: use spec.drain",
    ),
    OwnedFlag(
        names=("--config",),
        message="--config may set flags that are the operator's: give each flag in args",
    ),
)

OWNED_VARIABLES: Final = (
    "VLLM_NIXL_SIDE_CHANNEL_HOST",
    "VLLM_NIXL_SIDE_CHANNEL_PORT",
    "VLLM_HOST_IP",
)
_OWNED_VARIABLES_CEL: Final = "[" + ", ".join(f"'{name}'" for name in OWNED_VARIABLES) + "]"


def _flag_rule(flag: OwnedFlag) -> Rule[Sequence[str]]:
    pattern = re.compile(flag.pattern)
    return Rule(
        cel=f"!self.exists(a, a.matches('{flag.pattern}'))",
        holds=lambda words: not any(pattern.match(word) for word in words),
        message=flag.message,
    )


ARGUMENT_RULES: Final = tuple(_flag_rule(flag) for flag in OWNED_FLAGS)


def _value_xor_source(variable: EnvironmentVariable) -> bool:
    return variable.value is None or variable.value_from is None


def _has_no_owned_variable(variables: Sequence[EnvironmentVariable]) -> bool:
    return not any(variable.name in OWNED_VARIABLES for variable in variables)


VARIABLE_RULES: Final = (
    Rule(
        cel="!(has(self.value) && has(self.valueFrom))",
        holds=_value_xor_source,
        message="set value or valueFrom, not both",
    ),
)
ENVIRONMENT_RULES: Final = (
    Rule(
        cel=f"self.all(e, !(e.name in {_OWNED_VARIABLES_CEL}))",
        holds=_has_no_owned_variable,
        message=(
            "VLLM_HOST_IP and VLLM_NIXL_SIDE_CHANNEL_* are the operator's (always the pod's own "
            "address); for the port use spec.kvTransfer.sideChannelPort"
        ),
    ),
)


def _engine_words_untouched(containers: Sequence[ContainerTemplate]) -> bool:
    return all(
        container.name != "engine"
        or (container.image is None and container.command is None and container.args is None)
        for container in containers
    )


def _engine_variables_untouched(containers: Sequence[ContainerTemplate]) -> bool:
    return not any(
        container.name == "engine" and variable.name in OWNED_VARIABLES
        for container in containers
        for variable in container.env
    )


def _labels_are_foreign(labels: Mapping[str, str]) -> bool:
    return not any(
        key.startswith(f"{defaults.API_GROUP}/") or key == "app.kubernetes.io/instance"
        for key in labels
    )


LABEL_RULES: Final = (
    Rule(
        cel=(
            f"self.all(k, !k.startsWith('{defaults.API_GROUP}/') "
            "&& k != 'app.kubernetes.io/instance')"
        ),
        holds=_labels_are_foreign,
        message=(
            f"labels below {defaults.API_GROUP}/ and app.kubernetes.io/instance are the "
            "operator's; choose another key"
        ),
    ),
)
CONTAINER_RULES: Final = (
    Rule(
        cel=(
            "self.all(c, c.name != 'engine' || (!has(c.image) && !has(c.command) && !has(c.args)))"
        ),
        holds=_engine_words_untouched,
        message=(
            "image, command and args of the container engine come from spec.engine and the "
            "role's image and args; set them there"
        ),
    ),
    Rule(
        cel=(
            "self.all(c, c.name != 'engine' || !has(c.env) "
            f"|| c.env.all(e, !(e.name in {_OWNED_VARIABLES_CEL})))"
        ),
        holds=_engine_variables_untouched,
        message=(
            "VLLM_HOST_IP and VLLM_NIXL_SIDE_CHANNEL_* of the container engine are the operator's; "
            "for the port use spec.kvTransfer.sideChannelPort"
        ),
    ),
)
