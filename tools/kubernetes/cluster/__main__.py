"""Command line of the test cluster.

Shell. ``start``, ``stop``, ``status``, ``shell``, ``exec -- COMMAND``, ``import IMAGE``, ``hold``
and ``release COMPONENT``; ``supervise`` is what runs inside.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import sys
from pathlib import Path

from tools.kubernetes.build import BuildError, build_all, default_cache
from tools.kubernetes.cluster.host import Cluster
from tools.kubernetes.cluster.layout import COMPONENTS
from tools.kubernetes.cluster.shell import ClusterError
from tools.kubernetes.cluster.supervisor import Supervisor

DEFAULT_FOLDER = Path("/dev/shm/pdcluster-kubernetes")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.kubernetes.cluster", description=__doc__.partition("\n")[0]
    )
    verbs = parser.add_subparsers(dest="verb", required=True)

    def verb(name: str, text: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=text)
        made.add_argument("--dir", type=Path, default=DEFAULT_FOLDER, help="the cluster's folder")
        return made

    start = verb("start", "start a cluster, or use the one that runs")
    start.add_argument("--control-plane-only", action="store_true", help="without a node")
    start.add_argument("--network-policy", action="store_true", help="enforce NetworkPolicies")
    start.add_argument("--image", type=Path, action="append", default=[], help="archive to import")
    start.add_argument("--timeout", type=float, default=180.0, help="seconds")
    verb("stop", "end every process and remove what the cluster made")
    verb("status", "print addresses and paths")
    verb("shell", "a shell with kubectl and helm for it")
    verb("exec", "run a command in the namespaces").add_argument("command", nargs="+")
    verb("import", "give the node an image").add_argument("image", type=Path, nargs="+")
    for name, text in (("hold", "kill a component and keep it down"), ("release", "let it up")):
        verb(name, text).add_argument("component", choices=COMPONENTS)
    verb("supervise", "be process 1 in there (not for people)")
    return parser


def _status(cluster: Cluster) -> dict[str, object]:
    layout = cluster.layout
    pids = layout.folder / "pids.json"
    return {
        "running": cluster.is_running,
        "kubeconfig": str(layout.kubeconfig),
        "bin": str(layout.bin),
        "logs": str(layout.logs),
        "api": layout.api_url,
        "host": layout.host_ip,
        "pods": layout.pods,
        "services": layout.services,
        "dns": layout.dns_ip,
        "pidsInside": json.loads(pids.read_text()) if pids.exists() else {},
    }


def _start(cluster: Cluster, args: argparse.Namespace) -> None:
    bin_folder = build_all(default_cache())
    if not cluster.is_running:
        cluster.start(
            bin_folder,
            is_full=not args.control_plane_only,
            has_policies=args.network_policy,
            images=args.image,
            timeout_s=args.timeout,
        )


def _act(cluster: Cluster, args: argparse.Namespace) -> int:
    match args.verb:
        case "start":
            _start(cluster, args)
            print(json.dumps(_status(cluster), indent=1))
        case "stop":
            cluster.remove()
            print(f"Nothing is left of the cluster in {cluster.folder}.")
        case "status":
            print(json.dumps(_status(cluster), indent=1))
        case "shell":
            return cluster.shell()
        case "exec":
            return cluster.exec(args.command)
        case "import":
            for archive in args.image:
                cluster.import_image(archive)
        case "hold" | "release":
            cluster.hold(args.component, is_down=args.verb == "hold")
    return 0


def main() -> int:
    """Do one verb; starts and stops of one folder wait for each other."""
    args = _parser().parse_args()
    cluster = Cluster(args.dir)
    try:
        if args.verb == "supervise":
            Supervisor(cluster.layout).run()
        if args.verb == "start":
            cluster.folder.mkdir(parents=True, exist_ok=True)
        elif not cluster.folder.is_dir():
            print(f"cluster: none was started in {cluster.folder}", file=sys.stderr)
            return int(args.verb != "stop")
        with (cluster.folder / "lock").open("w") as lock:
            is_alone = args.verb in {"start", "stop"}
            fcntl.flock(lock, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
            return _act(cluster, args)
    except (BuildError, ClusterError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
