"""Benchmarks: programs of their own, but for `egeria bench`, whose harness and tasks are packages."""
