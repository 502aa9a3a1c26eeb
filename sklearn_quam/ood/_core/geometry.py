"""Lengths of vectors, also in units of a covariance that may be singular, and its shrinkage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Precision:
    """The inverse of a symmetric matrix, as a root.

    Parameters
    ----------
    root : ndarray of shape (n_features, n_features)
        R with R R' the inverse.
    """

    root: np.ndarray

    def in_units(self, vectors: np.ndarray) -> np.ndarray:
        """Return v' R of each row v: its plain length is v's length in these units."""
        return vectors @ self.root

    def squared_length(self, vectors: np.ndarray) -> np.ndarray:
        """Return v' R R' v of each row v."""
        return (self.in_units(vectors) ** 2).sum(axis=1)


def precision_of(matrix: np.ndarray, added: float = 0.0) -> Precision:
    """Return the inverse of a symmetric matrix with no negative eigenvalues.

    Directions in which it has no extent get a tiny one: what differs there is far away, where a
    pseudo-inverse would not see it at all.

    Parameters
    ----------
    matrix : ndarray of shape (n_features, n_features)
        The matrix.
    added : float, default=0.0
        What is added to its diagonal.

    Returns
    -------
    Precision
        The inverse.
    """
    values, vectors = np.linalg.eigh(matrix)
    values = np.maximum(values, 0.0) + added
    smallest = np.finfo(float).eps * len(values) * values.max()
    return Precision(vectors / np.sqrt(np.maximum(values, smallest or 1.0)))


def unit_length(vectors: np.ndarray) -> np.ndarray:
    """Return vectors divided by their length, zeros as they are."""
    largest = np.abs(vectors).max(axis=1, keepdims=True, initial=0.0)
    scaled = vectors / np.where(largest > 0, largest, 1.0)
    length = np.linalg.norm(scaled, axis=1, keepdims=True)
    return scaled / np.where(length > 0, length, 1.0)


def oas_shrinkage(covariance: np.ndarray, n_rows: float) -> float:
    """Return how far to shrink a covariance to a multiple of the identity.

    The oracle approximating estimate, which unlike Ledoit's and Wolf's needs no rows.

    Parameters
    ----------
    covariance : ndarray of shape (n_features, n_features)
        Of the rows.
    n_rows : float
        How many there were.

    Returns
    -------
    float
        Between 0 and 1.
    """
    size, mean = float((covariance**2).mean()), np.trace(covariance) / len(covariance)
    excess = (n_rows + 1) * (size - mean**2 / len(covariance))
    return min((size + mean**2) / excess, 1.0) if excess > 0 else 1.0
