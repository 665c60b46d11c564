"""The agent port: NIXL's and the fake that tests use."""
