"""This folder is about models as such: their layer modules, calls, modes, hooks and learning rates."""
