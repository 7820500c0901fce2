"""This folder makes the graphs that the controller runs as the reference model, and takes readings of plasticity."""
