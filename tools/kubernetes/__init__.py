"""Building and running a real Kubernetes for tests, without Docker and without a registry."""
