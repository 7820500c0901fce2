"""How alike the activations of two networks are on the same samples: 1 where they are the same up to rotation."""

from __future__ import annotations

import numpy as np

# Directions with less than this share of the largest singular value are rounding.
_RANK_TOLERANCE = 1e-6


def cka(a: np.ndarray, b: np.ndarray) -> float:
    """Linear CKA (arXiv 1905.00414) of activations [samples, features], with the estimator of HSIC that has no bias
    for few samples (arXiv 2010.15327). At least four samples."""
    k, l = _without_diagonal(a), _without_diagonal(b)  # noqa: E741 (K and L are the literature's names)
    return _hsic(k, l) / float(np.sqrt(max(_hsic(k, k) * _hsic(l, l), np.finfo(float).tiny)))


def pwcca(a: np.ndarray, b: np.ndarray) -> float:
    """Projection-weighted CCA (arXiv 1806.05759) of activations [samples, features], weighted by those of `a`."""
    a, b = a - a.mean(0), b - b.mean(0)
    of_a, of_b = _basis(a), _basis(b)
    if of_a.shape[1] == 0 or of_b.shape[1] == 0:
        return 0.0
    left, correlations, _ = np.linalg.svd(of_a.T @ of_b, full_matrices=False)
    weights = np.abs((of_a @ left).T @ a).sum(1)
    return float((weights * np.minimum(correlations, 1.0)).sum() / weights.sum())


def _without_diagonal(activations: np.ndarray) -> np.ndarray:
    gram = (activations @ activations.T).astype(np.float64)
    np.fill_diagonal(gram, 0.0)
    return gram


def _hsic(k: np.ndarray, l: np.ndarray) -> float:  # noqa: E741
    n = len(k)
    mean = k.sum() * l.sum() / ((n - 1) * (n - 2)) - 2 / (n - 2) * (k.sum(0) @ l.sum(0))
    return float(((k * l).sum() + mean) / (n * (n - 3)))


def _basis(centred: np.ndarray) -> np.ndarray:
    """An orthonormal basis of its columns."""
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    return left[:, values > _RANK_TOLERANCE * max(values.max(initial=0.0), np.finfo(float).tiny)]
