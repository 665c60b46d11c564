"""The engine's HTTP API, one module per family."""
