"""What all tests share: one Hypothesis profile.

Shared machines are slow at times, so no example has a deadline; what is fast or slow is a matter of
benchmarks, not of tests.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("pdcluster", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("pdcluster")
