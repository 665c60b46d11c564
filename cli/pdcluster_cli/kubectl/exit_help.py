"""Exit codes of ``kubectl pdcluster``, in words; those that it has of the command line's.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pdcluster_cli.exit_codes import ExitCode

__all__ = ["PLUGIN_EXIT_CODE_HELP", "PLUGIN_MEANINGS"]

PLUGIN_MEANINGS: Final[Mapping[ExitCode, str]] = {
    ExitCode.WELL: "well",
    ExitCode.FINDING: "not ready; a log could not be read",
    ExitCode.WRONG_USE: (
        "no such PDCluster (it says where there is one of that name), no kubeconfig, a wrong word"
    ),
    ExitCode.NOT_REACHABLE: (
        "the API server does not answer, does not know PDClusters, or rejects you"
    ),
    ExitCode.INTERRUPTED: "interrupted",
}
"""What each exit code tells."""

PLUGIN_EXIT_CODE_HELP: Final = (
    "Exit codes: "
    + "; ".join(f"{code.value} {words}" for code, words in PLUGIN_MEANINGS.items())
    + "."
)
