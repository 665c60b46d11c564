"""``make cluster-demo``: the whole way on a Kubernetes of its own, each command shown.

Shell. Cluster up, chart installed, the second example applied, one answer streamed by curl through
the Service, ``kubectl get pdc`` shown, everything down again. ``--keep`` leaves the cluster up.

Usage: ``python -m tools.cluster_demo [--keep]``.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tools.kubernetes.build import BuildError, build_all, default_cache, find_built
from tools.kubernetes.cluster.host import Cluster
from tools.kubernetes.cluster.layout import Layout
from tools.kubernetes.cluster.shell import ClusterError
from tools.system_packages import main as check_system_packages

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path("/dev/shm/pdcluster-demo")
EXAMPLE = "examples/02-simulated/pdcluster.yaml"
NAME = "simulated"
SYSTEM = "pdcluster-system"
VALUES = (
    "image.repository=docker.io/local/pdcluster",
    "image.tag=dev",
    "image.pullPolicy=Never",
    # Not needed here: the notes name it, for whoever keeps the cluster.
    "simulatorImage.repository=docker.io/local/pdcluster-sim",
    "simulatorImage.tag=dev",
)


class DemoError(Exception):
    """A command failed; the message is what to look at."""


class Demo:
    """Runs and shows commands.

    Args:
        layout: The cluster that runs.
    """

    def __init__(self, layout: Layout) -> None:
        self._environ: Mapping[str, str] = {
            **os.environ,
            "PATH": f"{layout.bin}:{os.environ['PATH']}",
            "KUBECONFIG": str(layout.kubeconfig),
            "no_proxy": "*",
            **{f"HELM_{k}_HOME": str(layout.folder / "helm") for k in ("CACHE", "CONFIG", "DATA")},
        }

    def show(self, *words: str, shown: str | None = None, timeout_s: float = 180.0) -> None:
        """Print a command, run it, let it print.

        Raises:
            DemoError: It failed.
        """
        print(f"\n$ {shown or shlex.join(words)}", flush=True)
        ended = subprocess.run(words, cwd=ROOT, env=self._environ, check=False, timeout=timeout_s)
        if ended.returncode:
            message = f"{words[0]} ended with {ended.returncode}"
            raise DemoError(message)

    def ask(self, *words: str) -> str:
        """Run a command that is not shown; give what it prints."""
        return subprocess.run(
            words, cwd=ROOT, env=self._environ, check=True, text=True, stdout=subprocess.PIPE
        ).stdout

    def run(self) -> None:
        """Everything that a user would type.

        Raises:
            DemoError: Something of it failed.
        """
        values = [word for value in VALUES for word in ("--set", value)]
        self.show(
            *("helm4", "install", "pdcluster", "charts/pdcluster", "--namespace", SYSTEM),
            *("--create-namespace", *values, "--wait", "--timeout=120s"),
        )
        self.show("kubectl", "apply", "-f", EXAMPLE)
        self.show("kubectl", "wait", "--for=condition=Ready", f"pdcluster/{NAME}", "--timeout=120s")
        self.show("kubectl", "get", "pdcluster", NAME)
        self.show("kubectl", "get", "pods", "-l", f"pdcluster.io/cluster={NAME}")
        address = self.ask(
            "kubectl", "get", "service", NAME, "-o", "jsonpath={.spec.clusterIP}"
        ).strip()
        body = {
            "model": "sim",
            "messages": [{"role": "user", "content": "Why does a lease end?"}],
            "max_tokens": 12,
            "stream": True,
        }
        url = f"http://{address}/v1/chat/completions"
        self.show("curl", "-sSN", "--fail", url, "-H", "content-type: application/json",
                  "-d", json.dumps(body))  # fmt: skip
        self.show("kubectl", "delete", "pdcluster", NAME, "--wait")
        self.show("helm4", "uninstall", "pdcluster", "--namespace", SYSTEM, "--wait")


def main() -> int:
    """Run the demo; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.cluster_demo", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--keep", action="store_true", help="leave the cluster running")
    args = parser.parse_args()
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"\n[{time.monotonic() - began:5.1f} s] {text}", flush=True)

    cluster = Cluster(FOLDER)
    has_failed = True
    try:
        if check_system_packages():
            return 1
        if find_built(default_cache()) is None:
            say("Kubernetes: built once, about 20 minutes of CPU time")
        programs = build_all(default_cache())
        say("Images")
        if subprocess.run([sys.executable, "-m", "tools.image"], cwd=ROOT, check=False).returncode:
            return 1
        archives = sorted((ROOT / ".cache" / "images").glob("*.tar"))
        say("A cluster of one node, in namespaces of its own")
        cluster.folder.mkdir(parents=True, exist_ok=True)
        layout = cluster.start(programs, has_policies=True, images=archives)
        say("It is ready")
        Demo(layout).run()
        has_failed = False
    except (BuildError, ClusterError, DemoError) as error:
        print(f"cluster-demo: {error}", file=sys.stderr)
        return 1
    finally:
        if not args.keep:
            if has_failed:
                cluster.stop()
                print(f"cluster-demo: the logs are in {FOLDER / 'logs'}", file=sys.stderr)
            else:
                cluster.remove()
    say("Done. Nothing is left of the cluster." if not args.keep else f"It runs on: {FOLDER}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
