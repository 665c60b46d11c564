"""The Kubernetes API: reading, writing, leading.

Shell.
"""
