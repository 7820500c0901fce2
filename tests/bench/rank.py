"""One rank of a run: `python -m bench.harness.rank` as a script, which a preloaded interpreter can start."""

from bench.harness.rank import main

main()
