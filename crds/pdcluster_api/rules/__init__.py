"""The rules between fields: one table, from which CEL and the models' validators both come.

Pure. Each row states a rule twice, side by side: as a CEL expression for the API server and as a
predicate for the models. Everything else (message, field) exists once. What one field alone can say
(type, bounds, pattern) is not here but in its type.

A message names what is wrong and the remedy; the place and the value are added by whoever reports.
The API server prints messages verbatim, so they are constant: CEL's cost estimate rejects messages
that put an unbounded string together.
"""

from pdcluster_api.rules.cluster import CLUSTER_RULES, SPEC_RULES
from pdcluster_api.rules.engine import (
    ARGUMENT_RULES,
    CONTAINER_RULES,
    ENVIRONMENT_RULES,
    LABEL_RULES,
    OWNED_FLAGS,
    OWNED_VARIABLES,
    VARIABLE_RULES,
    OwnedFlag,
)
from pdcluster_api.rules.node import (
    AUTOSCALING_RULES,
    KV_TRANSFER_RULES,
    RATIO_PATTERN,
    RATIO_RULES,
    ROLE_RULES,
    ROLLOUT_RULES,
)
from pdcluster_api.rules.rule import IMMUTABLE, Rule, broken_rules

__all__ = [
    "ARGUMENT_RULES",
    "AUTOSCALING_RULES",
    "CLUSTER_RULES",
    "CONTAINER_RULES",
    "ENVIRONMENT_RULES",
    "IMMUTABLE",
    "KV_TRANSFER_RULES",
    "LABEL_RULES",
    "OWNED_FLAGS",
    "OWNED_VARIABLES",
    "RATIO_PATTERN",
    "RATIO_RULES",
    "ROLE_RULES",
    "ROLLOUT_RULES",
    "SPEC_RULES",
    "VARIABLE_RULES",
    "OwnedFlag",
    "Rule",
    "broken_rules",
]
