"""The proxy's side process: discovery, health, engine metrics, ledger, admin."""
