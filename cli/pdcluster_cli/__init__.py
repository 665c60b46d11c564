"""The command pdcluster."""
