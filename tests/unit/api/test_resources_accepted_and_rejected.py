from __future__ import annotations

import pytest
from tests.support.resource_table import BAD, GOOD, Resource
from tests.support.resources import text_of, validated

from pdcluster_api.loading import load_cluster
from pdcluster_api.problems import ResourceError
from pdcluster_api.support import not_yet


@pytest.mark.parametrize("document", GOOD.values(), ids=GOOD)
def test_a_good_resource_is_accepted(document: Resource) -> None:
    accepted = validated(document)
    assert accepted.kind == "PDCluster"


@pytest.mark.parametrize(("document", "told"), BAD.values(), ids=BAD)
def test_a_bad_resource_is_rejected_with_place_and_remedy(document: Resource, told: str) -> None:
    with pytest.raises(ResourceError) as caught:
        load_cluster(text_of(document), source="file.yaml")
    assert told in str(caught.value)


@pytest.mark.parametrize("document", GOOD.values(), ids=GOOD)
def test_the_loader_rejects_a_good_resource_only_for_what_is_not_yet_supported(
    document: Resource,
) -> None:
    expected = {problem.path for problem in not_yet(validated(document))}
    try:
        load_cluster(text_of(document), source="file.yaml")
        found = set()
    except ResourceError as error:
        found = {problem.path for problem in error.problems}
    assert expected == found


@pytest.mark.parametrize("document", GOOD.values(), ids=GOOD)
def test_a_resource_survives_being_written_and_read_again(document: Resource) -> None:
    once = validated(document)
    written = once.model_dump_json(by_alias=True, exclude_none=True)
    again = type(once).model_validate_json(written, by_alias=True, by_name=False)
    assert once == again
