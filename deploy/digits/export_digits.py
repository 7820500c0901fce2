#!/usr/bin/env python3
"""Writes scikit-learn's handwritten digits as the file that egeria-train reads (docs/reference/formats/digits.md)."""

import argparse
import os
import struct
import sys
import tempfile

import numpy as np

MAGIC = b"EGDIGITS"
VERSION = 1


def encode(images, labels, training):
    """images: uint8 [n, height, width]; labels: uint8 [n]; the first `training` are for training."""
    count, height, width = images.shape
    header = MAGIC + struct.pack(
        "<7I", VERSION, count, training, height, width, int(labels.max()) + 1, int(images.max())
    )
    return header + images.tobytes() + labels.tobytes()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", help="where to write, such as digits.bin")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the images (default 0)")
    parser.add_argument("--training-share", type=float, default=0.8)
    arguments = parser.parse_args()
    if not 0 < arguments.training_share < 1:
        parser.error("--training-share must lie between 0 and 1")
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        sys.exit("scikit-learn is missing in this environment: pip install scikit-learn")
    digits = load_digits()
    # The set is ordered by writer: mix it, so that both parts have all hands.
    order = np.random.RandomState(arguments.seed).permutation(len(digits.target))
    images = digits.images[order].astype(np.uint8)
    labels = digits.target[order].astype(np.uint8)
    data = encode(images, labels, int(len(labels) * arguments.training_share))
    folder = os.path.dirname(os.path.abspath(arguments.file))
    os.makedirs(folder, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as out:
        out.write(data)
    os.chmod(out.name, 0o644)
    os.replace(out.name, arguments.file)


if __name__ == "__main__":
    main()
