"""This module holds what a model of the tests changes beyond itself."""

CALLS: list[int] = []
