"""What all tests share: one Hypothesis profile, and signals as a terminal would have them.

Shared machines are slow at times, so no example has a deadline; what is fast or slow is a matter of
benchmarks, not of tests.
"""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

settings.register_profile("pdcluster", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("pdcluster")

# A shell ignores these for what it starts in the background, and whatever a test starts would
# inherit that.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler)
