"""`egeria bench`: trains real tasks with and without freezing, records every run, and reports on the records."""
