"""Frozen layers in inference form: batch normalisation folded, layers fused, memory in the order that kernels like."""
