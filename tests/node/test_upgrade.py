"""The operator goes one version up and back again, while clients stream: no engine notices.

The version before is the tree's; the one after has fields more (``tests/support/next_version.py``),
renders engines in another way and says more to proxies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.kubernetes import eventually
from tests.support.next_version import (
    FIELD_DEFAULT,
    MADE_BY_NEXT,
    next_chart,
    write_next_image,
)
from tests.support.node import CHART, CHART_VALUES, SYSTEM, Node, Streams, answers, ask, fixture_of

pytestmark = pytest.mark.cluster

REPOSITORY = "docker.io/local/pdcluster"
PRESENT, NEXT = f"{REPOSITORY}:dev", f"{REPOSITORY}:next"
FIRST, SECOND = "simulated", "second"


def image_alone(node: Node, chart: Path) -> None:
    """What the documentation advises."""
    upgrade(node, chart, "--reuse-values", "--set", "image.tag=dev")


def older_chart(node: Node, chart: Path) -> None:
    """The other way that it names: all of the older chart but its definitions."""
    words = ("--reset-then-reuse-values", "--set", "image.tag=dev,crds.install=false")
    upgrade(node, CHART, *words)


def upgrade(node: Node, chart: Path, *words: str) -> None:
    node.helm("upgrade", "pdcluster", str(chart), "-n", SYSTEM, *words, "--wait", "--timeout=120s")


@pytest.fixture
def newer(installed: Node, images: tuple[Path, ...], tmp_path: Path) -> Iterator[Path]:
    """The next version's chart; its image is on the node. Whoever comes after finds the old."""
    [present] = [path for path in images if path.name == "pdcluster.tar"]
    write_next_image(present, tmp_path / "next.tar", name=NEXT)
    installed.cluster.import_image(tmp_path / "next.tar")
    yield next_chart(tmp_path)
    values = [word for value in CHART_VALUES for word in ("--set", value)]
    upgrade(installed, CHART, "--reset-values", *values)


def apply(node: Node, namespace: str, name: str, **changes: Any) -> str:
    """Apply the second example under a name; give where its clients connect, once it serves."""
    document = fixture_of("02-simulated", **changes)
    document["metadata"]["name"] = name
    node.kubectl.apply(document, namespace=namespace)
    words = ("wait", "--for=condition=Ready", f"pdcluster/{name}", "--timeout=180s")
    node.kubectl(*words, "-n", namespace, timeout_s=190)
    service = node.kubectl.get("service", name, "-n", namespace)
    url = f"http://{service['spec']['clusterIP']}"
    eventually("the Service's first answer", lambda: answers(url), within_s=30)
    return url


def pods(node: Node, namespace: str, component: str, *labels: str) -> dict[str, dict[str, Any]]:
    """Pods by name, those on their way out too."""
    selector = ",".join((f"app.kubernetes.io/component={component}", *labels))
    found = node.kubectl.get("pods", "-n", namespace, "-l", selector)["items"]
    return {pod["metadata"]["name"]: pod for pod in found}


def serves(pod: Mapping[str, Any]) -> bool:
    conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", ())}
    return conditions.get("Ready") == "True" and not pod["metadata"].get("deletionTimestamp")


@dataclass(frozen=True, slots=True)
class Engines:
    """The engines of a namespace at one time.

    Attributes:
        pods: uid and number of restarts, by name.
        templates: ReplicaSets: another pod template is another one.
    """

    pods: Mapping[str, tuple[str, int]]
    templates: frozenset[str]

    @classmethod
    def seen(cls, node: Node, namespace: str) -> Engines:
        """Look."""
        words = ("replicasets", "-n", namespace, "-l", "app.kubernetes.io/component=engine")
        templates = node.kubectl.get(*words)["items"]
        return cls(
            {
                name: (
                    pod["metadata"]["uid"],
                    sum(each["restartCount"] for each in pod["status"]["containerStatuses"]),
                )
                for name, pod in pods(node, namespace, "engine").items()
            },
            frozenset(each["metadata"]["name"] for each in templates),
        )

    def have_stayed(self, node: Node, namespace: str, *, and_new: int) -> Engines:
        """Make sure that they are there, untouched, and so many others of the same templates."""
        now = Engines.seen(node, namespace)
        assert {name: now.pods.get(name) for name in self.pods} == self.pods
        assert {restarts for _, restarts in now.pods.values()} == {0}
        assert len(now.pods) == len(self.pods) + and_new
        assert now.templates == self.templates
        return now


def leading_image(node: Node) -> str:
    """Image of the operator that acts."""
    holder = node.kubectl.get("lease", "pdcluster", "-n", SYSTEM)["spec"]["holderIdentity"]
    pod = node.kubectl.get("pod", holder, "-n", SYSTEM)
    return str(pod["spec"]["containers"][0]["image"])


def proxy_images(node: Node, namespace: str, name: str) -> list[str]:
    """Images of a cluster's proxies; empty while some come or go."""
    found = pods(node, namespace, "proxy", f"pdcluster.io/cluster={name}").values()
    if not all(serves(pod) for pod in found):
        return []
    return [pod["spec"]["containers"][0]["image"] for pod in found]


def settle(node: Node, namespace: str, image: str) -> None:
    """Wait until an image acts and is in the proxies that name none of their own."""
    eventually(f"{image} leads", lambda: leading_image(node) == image, within_s=60)
    eventually(
        f"proxies of {image}",
        lambda: proxy_images(node, namespace, FIRST) == [image, image],
        within_s=120,
    )


def restores(node: Node, namespace: str, name: str) -> None:
    """A Service that nobody needs is deleted by hand; whoever leads makes it again."""
    place = (f"{name}-engines", "-n", namespace)
    before = node.kubectl.get("service", *place)["metadata"]["uid"]
    node.kubectl("delete", "service", *place)
    eventually(
        "another Service",
        lambda: node.kubectl.get("service", *place)["metadata"]["uid"] != before,
        within_s=30,
    )


def scale(node: Node, namespace: str, name: str, replicas: int) -> None:
    """Have more decode engines, and wait until they serve."""
    node.kubectl("scale", f"pdpool/{name}-decode", f"--replicas={replicas}", "-n", namespace)
    labels = (f"pdcluster.io/cluster={name}", "pdcluster.io/role=decode")

    def there() -> bool:
        found = pods(node, namespace, "engine", *labels).values()
        return len(found) == replicas and all(serves(pod) for pod in found)

    eventually(f"{replicas} decode engines", there, within_s=90)


def unknown(node: Node, namespace: str, name: str) -> set[str]:
    """Fields that only a newer version knows, as the condition ConfigValid says."""
    conditions = node.kubectl.get("pdc", name, "-n", namespace)["status"]["conditions"]
    [message] = [each["message"] for each in conditions if each["type"] == "ConfigValid"]
    _, found, names = message.partition("does not know ")
    return set(names.removesuffix(" and ignores it.").split(", ")) if found else set()


def made_by_next(node: Node, namespace: str, name: str) -> set[bool]:
    """Whether a cluster's engines are as the next version renders them."""
    found = pods(node, namespace, "engine", f"pdcluster.io/cluster={name}").values()
    return {MADE_BY_NEXT in pod["metadata"]["labels"] for pod in found}


def works_as_next(node: Node, namespace: str) -> None:
    """The next version acts, and knows the fields that every resource has now."""
    settle(node, namespace, NEXT)
    restores(node, namespace, FIRST)
    spec = node.kubectl.get("pdc", FIRST, "-n", namespace)["spec"]
    assert (spec["newer"], spec["engine"]["newer"]) == (FIELD_DEFAULT, FIELD_DEFAULT)
    eventually("nothing unknown", lambda: not unknown(node, namespace, FIRST))


def works_as_before(node: Node, namespace: str) -> None:
    """The version before acts again, and says what it does not know."""
    settle(node, namespace, PRESENT)
    for name in (FIRST, SECOND):
        restores(node, namespace, name)
        told = partial(unknown, node, namespace, name)
        eventually("a word on what it does not know", told, within_s=10)
        assert told() == {"spec.newer", "spec.engine.newer"}


@pytest.mark.parametrize("way_back", [image_alone, older_chart])
def test_no_engine_restarts_on_the_way_to_the_next_version_and_back(
    installed: Node, namespace: str, newer: Path, way_back: Callable[[Node, Path], None]
) -> None:
    node = installed
    streams = Streams(apply(node, namespace, FIRST), num=6)
    before = Engines.seen(node, namespace)
    assert (len(before.pods), len(before.templates)) == (4, 2)
    settle(node, namespace, PRESENT)
    assert not unknown(node, namespace, FIRST)
    streams.start()
    try:
        upgrade(node, newer, "--reset-then-reuse-values", "--set", "image.tag=next")
        works_as_next(node, namespace)
        scale(node, namespace, FIRST, 3)
        before = before.have_stayed(node, namespace, and_new=1)
        assert made_by_next(node, namespace, FIRST) == {False}

        # A cluster of its own making; the proxy's image is of the version before.
        one = {"replicas": 1}
        proxy = one | {"image": PRESENT}
        url = apply(node, namespace, SECOND, prefill=one, decode=one, proxy=proxy, newer="set")
        assert made_by_next(node, namespace, SECOND) == {True}
        assert not unknown(node, namespace, FIRST) | unknown(node, namespace, SECOND)
        assert ask(url, "Of two versions.")["choices"]
        before = Engines.seen(node, namespace)
        proxies = pods(node, namespace, "proxy", f"pdcluster.io/cluster={SECOND}").keys()

        way_back(node, newer)
        works_as_before(node, namespace)
        scale(node, namespace, SECOND, 2)
        before.have_stayed(node, namespace, and_new=1)
        assert made_by_next(node, namespace, FIRST) == {False}
        assert made_by_next(node, namespace, SECOND) == {True}
        assert pods(node, namespace, "proxy", f"pdcluster.io/cluster={SECOND}").keys() == proxies
        # Somebody writes to the resource: what the operator does not know stays in it.
        node.kubectl("label", "pdc", SECOND, "-n", namespace, "touched=yes")
        assert node.kubectl.get("pdc", SECOND, "-n", namespace)["spec"]["newer"] == "set"
        assert ask(url, "Of one version again.")["choices"]
    finally:
        streams.stop()
    assert not streams.failures, (len(streams.failures), streams.failures[:5])
    assert streams.ended > 100
