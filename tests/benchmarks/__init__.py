"""Benchmarks that are programs of their own; `egeria bench` is in the folder bench."""
