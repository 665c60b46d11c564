"""The operator: turns a PDCluster into engines, proxy and what they need."""
