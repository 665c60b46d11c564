"""The test cluster itself: nothing of it stays on the host, even where it is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tools.kubernetes.cluster.host import Cluster

from tests.support.kubernetes import Kubectl, KubectlError, claimed_folder, eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
NUM_CYCLES = int(os.environ.get("PDCLUSTER_CLUSTER_CYCLES", "2"))
"""More take their time: 20 of them were tried when this was written."""


def processes_of(folder: Path) -> set[str]:
    """Programs that run with something of a folder on their command line."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(folder) in words and process.name != str(os.getpid()):
            found.add(words)
    return found


def told(*words: str) -> set[str]:
    """The lines of what a program prints."""
    return {*subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()}


def traces() -> dict[str, set[str]]:
    """What a cluster may leave on the host, without what changes by itself."""
    cgroups = Path("/sys/fs/cgroup")
    folders = ("/run", "/var/lib", "/var/log", "/etc/cni", "/etc/cni/net.d", "/opt", "/opt/cni")
    return {
        "links": {line.split(":")[1] for line in told("ip", "-o", "link")},
        "routes": told("ip", "route"),
        "mounts": {
            line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()
        },
        "cgroups": {str(path) for path in (*cgroups.glob("*/pdc*"), *cgroups.glob("pdc*"))},
        "rules": told("nft", "list", "ruleset"),
        "files": {
            str(path)
            for folder in folders
            if Path(folder).is_dir()
            for path in Path(folder).iterdir()
        },
    }


@contextmanager
def nothing_stays() -> Iterator[Path]:
    """Give a folder for a cluster; afterwards the host has to be as it was."""
    with claimed_folder("pdcluster-tests-itself") as folder:
        before = traces()
        yield folder
        after = traces()
        new = {kind: after[kind] - before[kind] for kind in after if after[kind] - before[kind]}
        assert new == {}
        assert processes_of(folder) == set()
        assert {path.name for path in folder.glob("*")} <= {"lock", "logs"}
        shutil.rmtree(folder)


def test_starts_and_stops_leave_nothing(programs: Path) -> None:
    with nothing_stays() as folder:
        for _ in range(NUM_CYCLES):
            cluster = Cluster(folder)
            layout = cluster.start(programs, has_policies=True, ends_with_us=True)
            kubectl = Kubectl(layout.bin / "kubectl", layout.kubeconfig)
            kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=30s")
            # Each of these would be seen if it stayed.
            assert processes_of(folder)
            assert any(layout.name in link for link in traces()["links"])
            assert any(layout.name in path for path in traces()["cgroups"])
            cluster.stop()


def test_a_killed_session_leaves_nothing_that_runs_and_the_next_stop_the_rest_nothing(
    programs: Path,
) -> None:
    program = (
        "import sys, time; from pathlib import Path;"
        "from tools.kubernetes.cluster.host import Cluster;"
        "Cluster(Path(sys.argv[1])).start(Path(sys.argv[2]), ends_with_us=True);"
        "print('started', flush=True); time.sleep(600)"
    )
    with nothing_stays() as folder:
        argv = [sys.executable, "-c", program, str(folder), str(programs)]
        with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as session:
            assert session.stdout is not None
            assert session.stdout.readline() == "started\n"
            layout = Cluster(folder).layout
            assert len(processes_of(folder)) > 5
            session.send_signal(signal.SIGKILL)
            session.wait(10)
        eventually("every process is gone", lambda: not processes_of(folder), within_s=20.0)
        # The link goes with the namespace that has its other end, and that one when the kernel has
        # let go of the last connection in it: a minute, where one was being closed.
        eventually(
            "the link is gone",
            lambda: not any(layout.name in link for link in traces()["links"]),
            within_s=120.0,
        )
        Cluster(folder).stop()


def test_two_run_side_by_side_and_a_component_can_be_held_down(
    control_plane: object, kubectl: Kubectl, programs: Path
) -> None:
    with nothing_stays() as folder:
        cluster = Cluster(folder)
        layout = cluster.start(programs, is_full=False, ends_with_us=True)
        other = Kubectl(layout.bin / "kubectl", layout.kubeconfig)
        other("create", "namespace", "here-alone")
        assert kubectl.find("namespace", "here-alone") is None

        cluster.hold("kube-apiserver", is_down=True)

        def is_away() -> bool:
            try:
                other("get", "--raw", "/readyz", "--request-timeout=1s")
            except KubectlError:
                return True
            return False

        eventually("the API server is down", is_away, within_s=20.0)
        time.sleep(3.0)
        assert is_away(), "it is kept down, not just killed"
        assert kubectl("get", "--raw", "/readyz") == "ok"
        cluster.hold("kube-apiserver", is_down=False)
        eventually("it is back", lambda: other("get", "--raw", "/readyz") == "ok")
        assert other.find("namespace", "here-alone") is not None
        cluster.stop()
