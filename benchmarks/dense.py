"""What it costs to tell how uncertain every pixel of a picture is.

Run ``python -m benchmarks.dense``: seconds of CPU for pictures of 64 x 64 pixels and five classes.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from scipy.ndimage import gaussian_filter
from torch import nn

from sklearn_quam import LaplaceClassifier, QUAMClassifier
from sklearn_quam.multioutput import DenseClassifier

N_TRAINING, N_NEW, SIZE, N_CLASSES, WIDTH = 16, 4, 64, 5, 32


def pictures(random: np.random.Generator, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return smooth random pictures, and five bands of their brightness as labels."""
    noise = random.normal(size=(number, 3, SIZE, SIZE))
    images = (20 * gaussian_filter(noise, (0, 0, 4, 4))).astype(np.float32)
    return images, np.digitize(images[:, 0] + images[:, 1] / 2, [-2, -0.7, 0.7, 2])


def network(images: np.ndarray, labels: np.ndarray) -> nn.Module:
    """Return a small convolutional network, trained."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, WIDTH, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(WIDTH, N_CLASSES, 1),
    )
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        scores = module(torch.tensor(images))
        nn.functional.cross_entropy(scores, torch.tensor(labels)).backward()
        optimizer.step()
    return module.eval()


def main() -> None:
    """Print a line for each method."""
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    images, labels = pictures(random, N_TRAINING)
    new, _ = pictures(random, N_NEW)
    module = network(images, labels)
    methods = {
        "LinearSearch": QUAMClassifier(module, search="linear", random_state=0),
        "NaturalSearch": QUAMClassifier(module, search="natural", random_state=0),
        "Laplace": LaplaceClassifier(module, random_state=0),
    }
    for name, method in methods.items():
        start = time.process_time()
        est = DenseClassifier(method, random_state=0).fit(images, labels)
        fitted = time.process_time()
        est.predict_uncertainty(new)
        seconds = (time.process_time() - fitted) / N_NEW
        print(f"{name:14}  fit {fitted - start:5.2f} s   a picture {seconds:5.2f} s", flush=True)


if __name__ == "__main__":
    main()
