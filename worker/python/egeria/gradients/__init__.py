"""This folder reads how much of the gradients is signal."""
