"""What the operator costs: memory and CPU when nothing happens, and how soon a change is applied.

A real control plane without a node; the operator as one process of this machine. The time from a
change to its children is read from the API server's audit log: from the arrival of the user's patch
to the end of the operator's last write for it.

Run: make bench-operator, or python -m benchmarks.operator [--idle SECONDS] [--output FILE].
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import psutil
from tools.kubernetes.build import build_all, default_cache
from tools.kubernetes.cluster.host import Cluster
from tools.kubernetes.cluster.layout import Layout

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path("/dev/shm/pdcluster-bench-operator")
NAMESPACE = "default"
NUM_RESOURCES = 50
WAIT_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """One operator with nothing to do.

    Attributes:
        resources: PDClusters that it looks after.
        rss_mib: Its resident memory.
        cpu_percent: Of one core.
    """

    resources: int
    rss_mib: float
    cpu_percent: float


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description="What the operator costs.")
    parser.add_argument("--idle", type=float, default=60.0, help="seconds of each idle measurement")
    parser.add_argument("--output", type=Path, default=Path(".cache/bench-operator.json"))
    args = parser.parse_args()
    with control_plane() as layout, operator(layout) as process:
        for path in sorted((ROOT / "crds").glob("*.yaml")):
            kubectl(layout, "apply", "--server-side", "-f", str(path))
        wait_for_kinds(layout)
        idles = []
        for number in (1, NUM_RESOURCES):
            apply(layout, number)
            idles.append(idle(process, number, args.idle))
            print(
                f"{number:3d} resources: {idles[-1].rss_mib:.0f} MiB, "
                f"{idles[-1].cpu_percent:.2f} % of a core when idle",
                flush=True,
            )
        delays = sorted(change_all(layout))
    p50, p99 = statistics.median(delays), delays[-1 - len(delays) // 100]
    print(f"change to children applied, {len(delays)} changes: p50 {p50:.3f} s, p99 {p99:.3f} s")
    args.output.parent.mkdir(parents=True, exist_ok=True)
    result = {"idle": [asdict(each) for each in idles], "delays_s": delays}
    args.output.write_text(json.dumps(result, indent=1) + "\n")


@contextmanager
def control_plane() -> Iterator[Layout]:
    """A control plane of its own."""
    cluster = Cluster(FOLDER)
    cluster.folder.mkdir(parents=True, exist_ok=True)
    try:
        yield cluster.start(build_all(default_cache()), is_full=False)
    finally:
        cluster.remove()


@contextmanager
def operator(layout: Layout) -> Iterator[psutil.Process]:
    """The operator, for as long as it is measured."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [sys.executable, "-m", "pdcluster_operator", "--image=pdcluster:1"]
    argv += ["--no-leader-election", "--probe-host=127.0.0.1", f"--probe-port={port}"]
    environ = {**os.environ, "KUBECONFIG": str(layout.kubeconfig)}
    with (layout.logs / "operator.log").open("wb") as log:
        process = subprocess.Popen(argv, env=environ, stdout=log, stderr=log)
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(20)


def kubectl(layout: Layout, *words: str, stdin: object = None) -> str:
    """Run kubectl; give what it prints."""
    environ = {**os.environ, "KUBECONFIG": str(layout.kubeconfig)}
    content = None if stdin is None else json.dumps(stdin)
    argv = [str(layout.bin / "kubectl"), *words]
    return subprocess.run(
        argv, input=content, text=True, stdout=subprocess.PIPE, check=True, env=environ, timeout=120
    ).stdout


def wait_for_kinds(layout: Layout, *, within_s: float = 30.0) -> None:
    """Wait until the server knows our kinds.

    ``kubectl wait`` is no help: it gives up on a definition so new that it has no conditions yet.
    """
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if "pdclusters" in kubectl(layout, "api-resources", "--api-group=pdcluster.io", "-o=name"):
            return
        time.sleep(0.2)
    message = "the server does not know PDClusters"
    raise TimeoutError(message)


def apply(layout: Layout, number: int) -> None:
    """Have so many resources, and wait until each has its children and a status."""
    one = {"replicas": 1}
    spec = {"model": {"name": "m"}, "engine": {"image": "i"}, "prefill": one, "decode": one}
    items = [
        {
            "apiVersion": "pdcluster.io/v1alpha1",
            "kind": "PDCluster",
            "metadata": {"name": f"c{index:02d}"},
            "spec": spec,
        }
        for index in range(number)
    ]
    listed = {"apiVersion": "v1", "kind": "List", "items": items}
    kubectl(layout, "apply", "--server-side", "-n", NAMESPACE, "-f", "-", stdin=listed)
    until = time.monotonic() + WAIT_S
    while not is_told(layout, number):
        if time.monotonic() > until:
            sys.exit(f"{number} resources were not looked at within {WAIT_S:g} s.")
        time.sleep(0.5)


def is_told(layout: Layout, number: int) -> bool:
    """Whether every resource has its Deployments and a current status."""
    found = json.loads(kubectl(layout, "get", "pdc", "-n", NAMESPACE, "-o", "json"))["items"]
    deployments = kubectl(layout, "get", "deploy", "-n", NAMESPACE, "-o", "name").split()
    return len(deployments) == 3 * number and all(
        each.get("status", {}).get("observedGeneration") == each["metadata"]["generation"]
        for each in found
    )


def idle(process: psutil.Process, number: int, seconds: float) -> Idle:
    """Measure while nothing happens."""
    time.sleep(5.0)
    before = process.cpu_times()
    time.sleep(seconds)
    after = process.cpu_times()
    used = after.user + after.system - before.user - before.system
    return Idle(
        resources=number,
        rss_mib=process.memory_info().rss / 2**20,
        cpu_percent=100.0 * used / seconds,
    )


def change_all(layout: Layout) -> list[float]:
    """Change each resource once; give the seconds until its children were written."""
    start = layout.audit_log.stat().st_size
    for index in range(NUM_RESOURCES):
        patch = '{"spec": {"proxy": {"idleTimeoutSeconds": 77}}}'
        words = ("patch", "pdc", f"c{index:02d}", "-n", NAMESPACE, "--type=merge", "-p", patch)
        kubectl(layout, *words)
        time.sleep(0.2)
    time.sleep(3.0)
    asked: dict[str, float] = {}
    done: dict[str, float] = {}
    with layout.audit_log.open() as log:
        log.seek(start)
        for line in log:
            if not line.endswith("\n"):
                break
            entry = json.loads(line)
            reference = entry.get("objectRef", {})
            if entry["verb"] != "patch" or "subresource" in reference:
                continue
            name = reference.get("name", "")
            if reference.get("resource") == "pdclusters":
                asked[name] = moment(entry["requestReceivedTimestamp"])
            elif reference.get("resource") in {"configmaps", "deployments"}:
                done[name.partition("-")[0]] = moment(entry["stageTimestamp"])
    return [done[name] - began for name, began in asked.items()]


def moment(text: str) -> float:
    """Seconds since the epoch."""
    return datetime.fromisoformat(text).timestamp()


if __name__ == "__main__":
    main()
