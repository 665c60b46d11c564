"""A whole node: pods, policies, the chart, real bytes between engines."""
