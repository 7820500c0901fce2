"""This folder has callbacks for training frameworks: `huggingface` (Transformers' Trainer) and `lightning`."""
