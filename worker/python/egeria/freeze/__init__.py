"""This folder freezes and unfreezes layer modules, on all ranks alike."""
