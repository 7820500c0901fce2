"""Callbacks for training frameworks: `huggingface` (Transformers' Trainer) and `lightning`."""
