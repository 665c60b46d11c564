"""What all tests share: a Hypothesis profile, a terminal's signals, who runs what side by side.

Shared machines are slow at times, so no example has a deadline; what is fast or slow is a matter of
benchmarks, not of tests.
"""

from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

settings.register_profile("pdcluster", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("pdcluster")

# A shell ignores these for what it starts in the background, and whatever a test starts would
# inherit that.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler)


class FolderScheduling(LoadScopeScheduling):
    """Give all tests of a folder to one worker: they share what they have started, a node say."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("::")[0].rpartition("/")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> FolderScheduling:
    """Schedule by folders, where several workers were asked for."""
    return FolderScheduling(config, log)
