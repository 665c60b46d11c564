"""The operator's settings: flags, and what the pod says of itself.

Pure but for argparse, which ends the process on bad words as its users expect.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pdcluster_operator.manifests.settings import RenderSettings

__all__ = ["Settings", "parse_settings"]

PROBE_PORT: Final = 8081
_SHOW_USER: Final = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What one operator process is told.

    Attributes:
        namespaces: Those that it watches; empty means all.
        own_namespace: Where it runs; its leader's Lease lies there.
        name: Name of the installation.
        instance: Name of this process.
        probe_host: Address of probes and metrics.
        probe_port: Their port.
        leads: Whether replicas agree on a leader.
        log_level: Least severe level that is written.
        is_json: Log lines as JSON.
        render: What enters manifests.
    """

    namespaces: tuple[str, ...]
    own_namespace: str
    name: str
    instance: str
    probe_host: str
    probe_port: int
    leads: bool
    log_level: str
    is_json: bool
    render: RenderSettings


def parse_settings(words: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Read flags; the pod's own namespace and name come from the environment."""
    args = _parser(environ).parse_args(words)
    user = None if args.run_as_user == _SHOW_USER else int(args.run_as_user)
    return Settings(
        namespaces=tuple(dict.fromkeys(args.namespace)),
        own_namespace=args.own_namespace,
        name=args.name,
        instance=args.instance,
        probe_host=args.probe_host,
        probe_port=args.probe_port,
        leads=not args.no_leader_election,
        log_level=args.log_level.upper(),
        is_json=args.log_format == "json",
        render=RenderSettings(
            operator=f"{args.own_namespace}/{args.name}",
            image=args.image,
            image_pull_policy=args.image_pull_policy,
            image_pull_secrets=tuple(args.image_pull_secret),
            run_as_user=user,
        ),
    )


def _user(text: str) -> str:
    if text != _SHOW_USER and not (text.isdecimal() and int(text) > 0):
        message = f"{text!r} is neither {_SHOW_USER!r} nor a number above 0"
        raise argparse.ArgumentTypeError(message)
    return text


def _parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pdcluster_operator",
        description="Turns PDClusters into prefill and decode engines behind a proxy.",
    )
    flag = parser.add_argument
    flag(
        "--namespace",
        action="append",
        default=[],
        help="namespace to watch; repeat it; default: all",
    )
    flag("--own-namespace", default=environ.get("POD_NAMESPACE", "default"), help="where this runs")
    flag("--name", default="pdcluster", help="name of the installation")
    flag("--instance", default=environ.get("POD_NAME", "operator"), help="name of this process")
    flag("--image", required=True, help="image of proxies that name none")
    flag("--image-pull-policy", default="IfNotPresent", choices=["Always", "IfNotPresent", "Never"])
    flag(
        "--image-pull-secret", action="append", default=[], help="Secret for pulling it; repeat it"
    )
    flag("--run-as-user", type=_user, default="65532", help="user of pods; 'any': the platform's")
    flag("--probe-host", default="0.0.0.0", help="address of probes and metrics")
    flag("--probe-port", type=int, default=PROBE_PORT, help="their port")
    flag("--no-leader-election", action="store_true", help="one replica only: start at once")
    flag("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    flag("--log-format", default="json", choices=["json", "console"])
    return parser
