"""MNIST: two LeNets that the authors of the paper have published, and images of other kinds.

1,000 images of MNIST's test set and of each other kind. QUAM searches the three fully connected
layers, for every image anew, with default arguments; so do Laplace's approximation of three layers,
SWAG and cyclical SG-HMC. Ensembles are ten networks that were trained alike, the given one among
them. The penalty search has the settings that ``benchmarks.paper.mnist`` has found.

Settings were chosen on the tuning images of Fashion-MNIST against training images that were held
out (``--tune``), and on other data.

    python -m benchmarks.scale.mnist --data DIR
"""

import numpy as np

from ..paper.lenet import OOD_SETS, load_images, load_networks, load_training_data, scaled
from ..paper.mnist import PENALTY
from .case import Case, Members, shuffled
from .run import EVERY, benchmark

N_IMAGES = 1000
SEEDS = {"seed 42": 42, "seed 142": 142}
LAPLACE = "Laplace, three layers"
VARIANTS = {
    "QUAM, temperature 3": {"temperature": 3.0},
    "QUAM, temperature 10": {"temperature": 10.0},
    "QUAM, temperature 100": {"temperature": 100.0},
    "QUAM, goal 8": {"search__goal": 8.0},
    "QUAM, goal 16": {"search__goal": 16.0},
}


def load(folder, case, tuning):
    seed = SEEDS[case]
    networks = load_networks(folder, seed)
    X, y, X_held_out, y_held_out = load_training_data(folder, seed)
    if tuning:
        X_test, y_test = X_held_out[:N_IMAGES], y_held_out[:N_IMAGES]
        others = {"FMNIST": load_images(folder, "fashion_mnist", N_IMAGES, "x_tune")}
    else:
        with np.load(folder / "mnist.npz", allow_pickle=False) as data:
            X_test, y_test = shuffled(
                scaled(data["x_test"]), data["y_test"].astype(np.int64), n_rows=N_IMAGES
            )
        others = {name: load_images(folder, file, N_IMAGES) for name, file in OOD_SETS.items()}
    return Case(
        network=networks[0],
        X=X,
        y=y,
        X_test=X_test,
        y_test=y_test,
        others=others,
        members=Members(lambda: networks),
        arguments={
            "MCDropout": {"n_samples": 2048},
            "SWAG": {"parameters": 3},
            "CyclicalSGHMC": {"parameters": 3},
            LAPLACE: {"parameters": 3},
            "QUAM, penalty search": PENALTY,
        },
    )


if __name__ == "__main__":
    benchmark(
        __doc__,
        "mnist",
        load,
        settings={"cases": list(SEEDS), "images": N_IMAGES},
        methods=(*EVERY, LAPLACE),
        few=50,
        variants=VARIANTS,
    )
