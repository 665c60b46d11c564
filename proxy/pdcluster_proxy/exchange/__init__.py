"""Drives the exchange machine: legs, hand-off, fail-over, disconnects, deadlines."""
