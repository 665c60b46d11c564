"""From a PDCluster to the programs it needs: the same for pods and for ``pdcluster up``.

Pure, all of it.
"""
