"""The KV lease protocol of vLLM in code: timing, wire formats, state machines, NIXL agent."""
