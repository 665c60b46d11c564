"""What the operator sees and what it does: frozen types, and reading the former from raw objects.

Pure, all of it.
"""
