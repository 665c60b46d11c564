"""The chart's test: a simulated cluster is made, asked once, deleted."""
