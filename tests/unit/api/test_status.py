from __future__ import annotations

import pytest
from tests.support.resources import cluster, resource, validated

from pdcluster_api.conditions import ConditionType, ConfigInvalidReason, InitialReason
from pdcluster_api.proxy_config import Role
from pdcluster_api.v1alpha1.status import PDClusterStatus, RoleStatus


def test_a_count_nobody_took_is_absent_and_never_zero() -> None:
    status = RoleStatus(name=Role.PREFILL)
    assert status.ready is None
    assert status.model_dump(by_alias=True, exclude_none=True) == {"name": "prefill"}


def test_an_older_operators_status_is_read() -> None:
    document = resource() | {
        "status": {
            "observedGeneration": 3,
            "colour": "red",
            "roles": [{"name": "prefill", "ready": 2, "wishes": 9}],
        }
    }
    status = validated(document).status
    assert status.observed_generation == 3
    assert status.roles[0].ready == 2


def test_a_status_with_a_role_twice_is_rejected() -> None:
    with pytest.raises(ValueError, match="a second time"):
        PDClusterStatus.model_validate_json('{"roles": [{"name": "prefill"}, {"name": "prefill"}]}')


def test_an_untouched_cluster_is_not_ready() -> None:
    [condition] = cluster().status.conditions
    assert condition.type == ConditionType.READY
    assert condition.reason == InitialReason.WAITING_FOR_OPERATOR


def test_names_of_conditions_and_reasons_are_camel_case_and_unique() -> None:
    words = [*ConditionType, *InitialReason, *ConfigInvalidReason]
    assert len(set(words)) == len(words)
    for word in words:
        assert word[0].isupper()
        assert word.isalnum()
