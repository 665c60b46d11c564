"""``python -m pdcluster_api``: write the CRD files, or compare them with the models.

Shell: a composition root. Used by ``make generate`` and ``make check``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pdcluster_api.crd import render_files


def main() -> int:
    """Write or compare the CRD files.

    Returns:
        0 where the files are as rendered, 1 where ``--check`` found one that is not.
    """
    parser = argparse.ArgumentParser(prog="python -m pdcluster_api", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path(__file__).parents[1],
        help="where the files are (default: crds/)",
    )
    options = parser.parse_args()
    stale = 0
    for name, text in render_files().items():
        path = options.directory / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if options.check:
            print(f"{path} is not what the models say: run `make generate`", file=sys.stderr)  # noqa: T201 - the command's output
            stale = 1
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path}")  # noqa: T201 - the command's output
    return stale


if __name__ == "__main__":
    sys.exit(main())
