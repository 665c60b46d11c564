"""``kubectl pdcluster``: what a PDCluster is doing, and what its pods log."""
