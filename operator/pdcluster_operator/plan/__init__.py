"""What to do about one cluster, from a snapshot alone.

Pure, all of it. Total over any snapshot; planning on the outcome of a finished plan gives nothing.
"""
