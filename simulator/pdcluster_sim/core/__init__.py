"""Pure core of the simulated engine: scheduling, blocks, tokens, latency, leases."""
