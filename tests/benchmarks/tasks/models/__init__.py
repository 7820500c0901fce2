"""The networks of the tasks, written out so that no further package is needed."""
