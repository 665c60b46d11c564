"""From programs to Kubernetes objects.

Pure, all of it.
"""
