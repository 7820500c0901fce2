"""`egeria bench`: tasks, and the harness that trains them, records every run and reports on the records."""
