"""Command line of the image builder.

Shell. ``python -m tools.image [pdcluster] [pdcluster-sim]`` builds (``make image``); ``--sizes``
prints what the built images are made of.
"""

from __future__ import annotations

import argparse
import sys

from tools.image.build import Builder, ImageError
from tools.image.recipe import TARGETS
from tools.kubernetes.build import default_cache


def main() -> int:
    """Build, or describe what is built."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.image", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--sizes", action="store_true", help="say what built images are made of")
    parser.add_argument(
        "--fresh-base", action="store_true", help="take Debian's packages as they are now"
    )
    args = parser.parse_args()
    targets = args.targets or list(TARGETS)
    unknown = sorted({*targets} - {*TARGETS})
    if unknown:
        parser.error(f"no image is named {', '.join(unknown)}")
    builder = Builder(cache=default_cache() / "images", has_fresh_base=args.fresh_base)
    try:
        if not args.sizes:
            builder.build(targets)
            return 0
        for target in targets:
            print(f"{target}:", *builder.sizes(target), sep="\n  ")
    except ImageError as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
