"""A test cluster's addresses and paths, from its folder alone."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools.kubernetes.cluster.host import Cluster
from tools.kubernetes.cluster.layout import Facts, Layout, cluster_name, free_net
from tools.kubernetes.cluster.shell import ClusterError

FOLDERS = st.text("abcdefgh0123456789-", min_size=1, max_size=30).map(
    lambda name: Path("/dev/shm", name)
)
NETS = st.integers(64, 191)


def layout(net: int = 64, **facts: bool) -> Layout:
    return Layout(Path("/dev/shm/x"), Facts(bin="/bin", net=net, **facts))


@given(NETS)
def test_pods_services_and_node_do_not_overlap(net: int) -> None:
    made = layout(net)
    whole, pods, services = (ip_network(each) for each in (made.route, made.pods, made.services))
    assert pods.subnet_of(whole)
    assert services.subnet_of(whole)
    assert not pods.overlaps(services)
    for ip in map(ip_address, (made.host_ip, made.node_ip)):
        assert ip in whole
        assert ip not in pods
        assert ip not in services
    assert ip_address(made.api_ip) == services[1]
    assert ip_address(made.dns_ip) in services


@given(FOLDERS, FOLDERS)
def test_a_name_fits_a_link_and_belongs_to_one_folder(one: Path, other: Path) -> None:
    assert len(cluster_name(one)) == 10
    assert cluster_name(one).startswith("pdc")
    assert (cluster_name(one) == cluster_name(other)) == (one == other)


@given(FOLDERS, st.sets(NETS, max_size=120))
def test_a_network_that_has_a_route_is_never_chosen(folder: Path, taken: set[int]) -> None:
    routes = "\n".join(f"10.{net}.0.0/16 via 10.{net}.255.2 dev x" for net in taken)
    assert free_net(folder, routes) not in taken


def test_a_folder_gets_the_network_it_had() -> None:
    folder = Path("/dev/shm/a")
    assert free_net(folder, "") == free_net(folder, "")


def test_no_free_network_is_an_error() -> None:
    routes = "\n".join(f"10.{net}.0.0/16 dev x" for net in range(256))
    with pytest.raises(ValueError, match="is free of routes"):
        free_net(Path("/dev/shm/a"), routes)


@pytest.mark.parametrize(
    ("facts", "wanted", "unwanted"),
    [
        ({"is_full": False}, {"etcd", "kube-apiserver"}, {"kubelet", "containerd", "kube-router"}),
        ({"is_full": True}, {"kubelet", "bridge", "coredns"}, {"kube-router"}),
        ({"is_full": True, "has_policies": True}, {"kubelet", "kube-router"}, set()),
    ],
)
def test_a_cluster_wants_the_programs_it_runs(
    facts: dict[str, bool], wanted: set[str], unwanted: set[str]
) -> None:
    programs = set(layout(**facts).wanted_programs())
    assert wanted <= programs
    assert not unwanted & programs


def test_a_folder_that_is_no_cluster_s_is_never_emptied(tmp_path: Path) -> None:
    theirs = tmp_path / "thesis.txt"
    theirs.write_text("years of work")
    with pytest.raises(ClusterError, match=r"is no cluster's: it holds thesis\.txt"):
        Cluster(tmp_path).stop()
    assert theirs.exists()
