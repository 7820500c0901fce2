"""`egeria trial` trains the first steps twice, with and without freezing, and says whether freezing keeps up."""
