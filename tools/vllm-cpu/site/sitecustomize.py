"""Three scheduling cures that let several vLLM engines share two cores; on PYTHONPATH of engines.

Shell. No vLLM file is changed, and nothing of the protocol: only who gets the processor when.

1. vLLM's shared-memory queue spins on ``sched_yield`` for a second after each read: it sleeps a
   little instead.
2. On the CPU platform the NIXL connector pins each rank to the last core of a NUMA node, so that P
   and D share one core: the pin is skipped.
3. The progress thread of a NIXL agent polls without rest, one whole core per engine, because
   NIXL's Python API gives it a delay of 0. ``NIXL_PROG_THREAD`` chooses: ``wait`` (default) lets it
   wait for events (3 % of a core when idle); ``0`` leaves it out (0 %, but then an engine without
   requests serves no reads: a read of an expired lease hangs instead of finding stale blocks);
   ``1`` as shipped.

``VLLM_GENTLE=0`` turns 1 and 2 off.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
import time
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

YIELD_S = 0.0003
PROGRESS_DELAY_US = 1000
"""How long a progress thread waits for an event before it looks by itself."""
BACKENDS = ("nixl_cu12._api", "nixl_cu13._api")


def soften(module: ModuleType, mode: str) -> None:
    """Wrap the constructors of a freshly imported NIXL module."""
    config, make_agent = module.nixl_agent_config, module.nixlBind.nixlAgent
    config_init = config.__init__

    def init_without_thread(self: object, *args: object, **kwargs: object) -> None:
        config_init(self, *args, **kwargs)
        self.enable_pthread = False  # type: ignore[attr-defined]

    def agent_that_waits(name: str, settings: Any) -> object:
        settings.pthrDelay = PROGRESS_DELAY_US
        return make_agent(name, settings)

    if mode == "0":
        config.__init__ = init_without_thread
    else:
        module.nixlBind.nixlAgent = agent_that_waits


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
_MODE = os.environ.get("NIXL_PROG_THREAD", "wait")
if _MODE != "1":
    sys.meta_path.insert(0, NixlFinder(_MODE))
