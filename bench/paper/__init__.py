"""Figures of Egeria's paper (arXiv 2201.06227), made anew from trainings that `egeria bench` has recorded.

`python -m bench.paper measure` looks at the checkpoints of plain runs, `oracle` makes a schedule of what it saw, and
`report` writes the page. docs/results/paper.md is such a page, and has the commands in their order.
"""
