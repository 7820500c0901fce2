"""Shows what the controller's page shows elsewhere: in a terminal (`egeria top`), and in TensorBoard."""
