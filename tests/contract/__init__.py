"""Suites that hold fakes and real things to the same promises."""
