"""kopf as a source of events.

Shell.
"""
