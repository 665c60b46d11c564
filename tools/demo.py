"""The demonstration: one streamed answer over two legs, and the story of how it came about.

Shell. It runs what a user runs, ``pdcluster up``, asks through the proxy with the ``openai``
client, and tells what happened from three sources only: P's params and timings as the exchange log
holds them, the engines' own metrics, and what came back. No figure in the story is a constant.

Usage: ``python -m tools.demo [--engine sim|vllm]`` (``make demo``, ``make demo-vllm``). On a
terminal the cluster keeps running until Ctrl-C; otherwise it ends with exit code 0.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import yaml
from openai import OpenAI

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = {"sim": "examples/01-minimal", "vllm": "examples/03-cpu-vllm"}
QUESTIONS = {
    "sim": (
        "A prefill engine has read this whole prompt and keeps its KV blocks pinned under a lease. "
        "Tell in a few words how they reach the decode engine before the lease is over."
    ),
    "vllm": "What is the capital of France? Answer in one sentence.",
}
READY_WITHIN_S = {"sim": 60.0, "vllm": 400.0}
MAX_TOKENS = 24
MAX_REPEATS = 6
METRIC = re.compile(r"^(vllm:\w+?)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Cluster:
    """A running cluster as a user sees it."""

    process: subprocess.Popen[str]
    url: str
    admin_url: str
    log: Path
    """The proxy's log, which holds the exchange log."""
    model: str


def say(text: str = "") -> None:
    """Print at once, also into a pipe."""
    print(text, flush=True)


def free_port(wanted: int) -> int:
    """Take the wanted port, or any other where it is taken."""
    with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", wanted)):
        return wanted
    with socket.create_server(("127.0.0.1", 0)) as other:
        port: int = other.getsockname()[1]
        return port


@contextlib.contextmanager
def running(engine: str, state: str) -> Iterator[Cluster]:
    """Run ``pdcluster up`` and wait until it says that it is ready."""
    file = ROOT / EXAMPLES[engine] / "pdcluster.yaml"
    port, admin = free_port(8080), free_port(9090)
    argv = [str(Path(sys.executable).with_name("pdcluster")), "up", "--engine", engine]
    argv += ["-f", str(file), "--state-dir", state, "--port", str(port)]
    argv += ["--admin-port", str(admin)]
    say(f"$ pdcluster up --engine {engine} -f {file.relative_to(ROOT)} --port {port}")
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        logs = wait_ready(process, READY_WITHIN_S[engine])
        spec = yaml.safe_load(file.read_text())["spec"]["model"]
        model = httpx.get(f"http://127.0.0.1:{port}/v1/models").json()["data"][0]["id"]
        assert model == spec.get("servedName", model), "the proxy serves another model"
        yield Cluster(
            process,
            f"http://127.0.0.1:{port}",
            f"http://127.0.0.1:{admin}",
            logs / "proxy.log",
            model,
        )
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=60)
        process.kill()


def wait_ready(process: subprocess.Popen[str], within_s: float) -> Path:
    """Show what ``up`` says until it is ready; returns its folder of logs."""
    assert process.stdout is not None
    deadline = time.monotonic() + within_s
    logs = Path()
    for line in process.stdout:
        if line.startswith("Logs: "):
            logs = Path(line.removeprefix("Logs: ").strip())
        if line.startswith("Ready after"):
            return logs
        say(f"  {line.rstrip()}")
        if time.monotonic() > deadline:
            break
    sys.exit("The cluster did not become ready; the lines above say why.")


def ask(cluster: Cluster, question: str) -> str:
    """Stream one chat answer with the openai client, showing it as it comes."""
    client = OpenAI(base_url=f"{cluster.url}/v1", api_key="none", max_retries=0)
    stream = client.chat.completions.create(
        model=cluster.model,
        messages=[{"role": "user", "content": question}],
        max_tokens=MAX_TOKENS,
        temperature=0,
        stream=True,
    )
    text = ""
    for event in stream:
        piece = event.choices[0].delta.content or "" if event.choices else ""
        text += piece
        print(piece, end="", flush=True)
    say()
    return text


def endpoints(cluster: Cluster) -> dict[str, str]:
    """URLs of the engines by name, as the proxy knows them."""
    known = httpx.get(f"{cluster.admin_url}/endpoints").json()
    return {e["name"]: f"http://{e['host']}:{e['port']}" for e in known}


def metrics(url: str) -> dict[str, float]:
    """An engine's own counters, summed over labels."""
    totals: dict[str, float] = {}
    for name, value in METRIC.findall(httpx.get(f"{url}/metrics").text):
        totals[name] = totals.get(name, 0.0) + float(value)
    return totals


def last_record(cluster: Cluster, seen: int) -> dict[str, object]:
    """The exchange log's newest line, once it is written."""
    for _ in range(100):
        lines = [
            line
            for line in cluster.log.read_text(errors="replace").splitlines()
            if '"exchange.complete"' in line
        ]
        if len(lines) > seen:
            record = json.loads(lines[-1])
            assert isinstance(record, dict)
            return record
        time.sleep(0.05)
    sys.exit(f"The exchange log {cluster.log} has no line for this exchange.")


@dataclass(frozen=True)
class Exchange:
    """One exchange with what its engines counted meanwhile."""

    record: dict[str, object]
    transfers: float
    num_bytes: float
    expired: float
    prefill_usage: float

    @property
    def decode(self) -> str:
        """D's name."""
        return str(self.record["decode"])


def observed_exchange(cluster: Cluster, question: str, seen: int) -> Exchange:
    """Ask, and compare the engines' counters before and after."""
    urls = endpoints(cluster)
    before = {name: metrics(url) for name, url in urls.items()}
    ask(cluster, question)
    record = last_record(cluster, seen)
    prefill, decode = str(record["prefill"]), str(record["decode"])
    p, d = metrics(urls[prefill]), metrics(urls[decode])

    def grown(name: str, after: dict[str, float], engine: str) -> float:
        return after.get(name, 0.0) - before[engine].get(name, 0.0)

    return Exchange(
        record,
        grown("vllm:nixl_bytes_transferred_count", d, decode),
        grown("vllm:nixl_bytes_transferred_sum", d, decode),
        grown("vllm:nixl_num_kv_expired_reqs_total", p, prefill),
        p.get("vllm:kv_cache_usage_perc", 0.0),
    )


def number(record: dict[str, object], name: str) -> float:
    """A figure of the exchange log; fields that are zero are left out there."""
    value = record.get(name, 0)
    assert isinstance(value, int | float)
    return float(value)


def story(exchange: Exchange) -> None:
    """Tell one exchange in lines a newcomer understands."""
    r = exchange.record
    blocks = number(r, "num_blocks")
    legs = number(r, "decode_legs")
    say("What happened:")
    say(
        f"  1. {r['prefill']} read the prompt, {number(r, 'num_prompt_tokens'):.0f} tokens, in "
        f"{1000 * number(r, 'prefill_s'):.0f} ms. It pinned {blocks:.0f} KV blocks and granted a "
        f"lease of {number(r, 'lease_s'):.0f} s on them."
    )
    say(
        f"  2. Only then the proxy chose {r['decode']} out of {number(r, 'num_decodes'):.0f} "
        f"decode engines: {legs:.0f} other requests were open on it, none had fewer."
    )
    say(
        f"  3. It handed over at a lease age of {number(r, 'hand_off_age_s'):.2f} s (counted from "
        f"a second before the answer came); up to {number(r, 'hand_off_bound_s'):.0f} s would have "
        "been in time, later it would have prefilled again."
    )
    say(
        f"  4. {r['decode']} read {exchange.num_bytes:,.0f} bytes over NIXL from {r['prefill']}'s "
        f"memory, in {exchange.transfers:.0f} transfer, and streamed its first event "
        f"{1000 * number(r, 'first_event_s'):.0f} ms after the request came."
    )
    ended = "released by that read" if not exchange.expired else "expired"
    say(
        f"  5. The lease was {ended}, at an age of at most "
        f"{number(r, 'lease_ended_age_s'):.2f} s: {r['prefill']} now holds "
        f"{100 * exchange.prefill_usage:.1f} % of its KV cache."
    )


def tell_repeat(cluster: Cluster, question: str, first: Exchange) -> None:
    """Ask again until a decode engine that has the prompt in its prefix cache gets it."""
    by_decode = {first.decode: first}
    for seen in range(1, MAX_REPEATS):
        say()
        say("The same question again:")
        again = observed_exchange(cluster, question, seen)
        before = by_decode.setdefault(again.decode, again)
        if before is not again:
            say(
                f"This time {again.decode} read {again.num_bytes:,.0f} bytes instead of "
                f"{before.num_bytes:,.0f}: it still had the prompt's first blocks in its own "
                "prefix cache."
            )
            return
        say(f"It went to {again.decode}, which had not seen it: {again.num_bytes:,.0f} bytes.")


def main() -> None:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", choices=sorted(EXAMPLES), default="sim")
    args = parser.parse_args()
    question = QUESTIONS[args.engine]
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as state, running(args.engine, state) as cluster:
        say(f"Ready after {time.monotonic() - started:.1f} s.\n")
        if args.engine == "sim":
            say("(Simulated engines answer in plausible words without sense, made from the blocks")
            say("they read: one wrong byte would give other words.)")
        say(f"You: {question}")
        exchange = observed_exchange(cluster, question, 0)
        say()
        story(exchange)
        tell_repeat(cluster, question, exchange)
        stays = sys.stdout.isatty()
        say("\nTry next:" if stays else "\nTry next, with `.venv/bin/pdcluster up` running:")
        body = {
            "model": cluster.model,
            "messages": [{"role": "user", "content": "Say hello."}],
            "max_tokens": 16,
            "stream": True,
        }
        url = cluster.url if stays else "http://127.0.0.1:8080"
        admin_url = cluster.admin_url if stays else "http://127.0.0.1:9090"
        say(
            f"  curl -sSN {url}/v1/chat/completions -H 'content-type: "
            f"application/json' -d '{json.dumps(body)}'"
        )
        say(f"  curl -sS {admin_url}/metrics")
        say("  .venv/bin/pdcluster explain-lease -f examples/01-minimal/pdcluster.yaml")
        if stays:
            say("\nThe cluster keeps running; Ctrl-C ends it.")
            with contextlib.suppress(KeyboardInterrupt):
                cluster.process.wait()
    say("Stopped; nothing is left running.")


if __name__ == "__main__":
    main()
