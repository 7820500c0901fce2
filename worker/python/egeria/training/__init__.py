"""This folder has sessions, which are Egeria in a training loop."""
