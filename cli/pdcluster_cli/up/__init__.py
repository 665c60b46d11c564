"""A PDCluster on one machine, without Kubernetes.

``snapshot``, ``lifecycle``, ``planning`` and ``view`` are pure; the rest is shell.
"""
