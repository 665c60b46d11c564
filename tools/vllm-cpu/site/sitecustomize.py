"""Three scheduling cures that let several vLLM engines share two cores; on PYTHONPATH of engines.

Shell. No vLLM file is changed, and nothing of the protocol: only who gets the processor when.

1. vLLM's shared-memory queue spins on ``sched_yield`` for a second after each read: it sleeps a
   little instead.
2. On the CPU platform the NIXL connector pins each rank to the last core of a NUMA node, so that P
   and D share one core: the pin is skipped.
3. The progress thread of a NIXL agent polls without rest, one whole core per engine.
   ``NIXL_PROG_THREAD`` chooses: ``idle`` (default) keeps it under SCHED_IDLE, so that it only takes
   time nobody wants; ``0`` leaves it out (0 % idle, but then an engine without requests serves no
   reads: a read of an expired lease hangs instead of finding stale blocks); ``1`` as shipped.

``VLLM_GENTLE=0`` turns 1 and 2 off.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

YIELD_S = 0.0003
BACKENDS = ("nixl_cu12._api", "nixl_cu13._api")


def threads() -> set[int]:
    """Kernel ids of this process's threads."""
    return {int(task.name) for task in Path("/proc/self/task").iterdir()}


def soften(module: ModuleType, mode: str) -> None:
    """Wrap the constructors of a freshly imported NIXL module."""
    config, agent = module.nixl_agent_config, module.nixl_agent
    config_init, agent_init = config.__init__, agent.__init__

    def init_without_thread(self: object, *args: object, **kwargs: object) -> None:
        config_init(self, *args, **kwargs)
        self.enable_pthread = False  # type: ignore[attr-defined]

    def init_with_idle_thread(self: object, *args: object, **kwargs: object) -> None:
        before = threads()
        agent_init(self, *args, **kwargs)
        for thread in threads() - before:
            try:
                os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
            except OSError:
                # The thread may be gone already, or the policy not permitted: as shipped then.
                continue

    if mode == "0":
        config.__init__ = init_without_thread
    else:
        agent.__init__ = init_with_idle_thread


class NixlFinder(importlib.abc.MetaPathFinder):
    """Lets NIXL's API module load as usual, then softens it."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.searching = False

    def find_spec(self, fullname: str, *_args: object) -> ModuleSpec | None:
        """Find the real module with this finder out of the way."""
        if self.searching or fullname not in BACKENDS:
            return None
        self.searching = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.searching = False
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            soften(module, self.mode)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if os.environ.get("VLLM_GENTLE", "1") == "1":
    os.sched_yield = lambda: time.sleep(YIELD_S)
    os.sched_setaffinity = lambda *_args: None
if os.environ.get("NIXL_PROG_THREAD", "idle") != "1":
    sys.meta_path.insert(0, NixlFinder(os.environ.get("NIXL_PROG_THREAD", "idle")))
