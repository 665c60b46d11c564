"""An engine without GPU that speaks vLLM's HTTP API and the KV lease over real NIXL."""
