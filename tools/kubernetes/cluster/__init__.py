"""A real one-node Kubernetes cluster in namespaces of its own, for tests and for trying things out.

Started by ``python -m tools.kubernetes.cluster`` (``make cluster``). The host sees one virtual link
and one route; everything else ends with the process that is pid 1 in there.
"""
