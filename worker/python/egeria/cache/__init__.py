"""The cache keeps activations of frozen layers. This folder proves which forward passes it may replace, and does so."""
