"""A PDCluster on one machine, without Kubernetes.

``fleet``, ``lifecycle``, ``planning`` and ``view`` are pure; the rest is shell.
"""
