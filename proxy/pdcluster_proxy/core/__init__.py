"""The proxy's decisions: pure functions and frozen data."""
