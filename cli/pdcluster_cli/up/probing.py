"""Asks a program whether it is well.

Shell: the command line's one use of httpx.
"""

from __future__ import annotations

import httpx

from pdcluster_operator.program.programs import Probe

__all__ = ["is_well", "probing_client"]


def probing_client() -> httpx.AsyncClient:
    """Return a client that opens a connection for each probe, as a kubelet does."""
    return httpx.AsyncClient(
        # Loopback only: a proxy from the environment must not be asked.
        trust_env=False,
        limits=httpx.Limits(max_keepalive_connections=0),
    )


async def is_well(client: httpx.AsyncClient, host: str, probe: Probe) -> bool:
    """Whether a probe is answered with 200 in time."""
    try:
        answer = await client.get(
            f"http://{host}:{probe.port}{probe.path}", timeout=float(probe.timeout_s)
        )
    except httpx.HTTPError:
        return False
    return answer.status_code == httpx.codes.OK
