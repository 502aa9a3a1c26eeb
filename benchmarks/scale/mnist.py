"""MNIST: two LeNets that the authors of the paper have published, and images of other kinds.

QUAM searches the three fully connected layers, for every image anew, with default arguments; so do
SWAG and cyclical SG-HMC. Ensembles are ten networks that were trained alike, the given one among
them. Settings were chosen on other images of Fashion-MNIST, and on other data.
"""

import numpy as np

from ..paper.lenet import OOD_SETS, load_images, load_networks, load_training_data, scaled
from .case import Case, Family, Members, shuffled

SEEDS = {"seed 42": 42, "seed 142": 142}
N_TEST, N_OTHERS = 1500, 500


def load(folder, case, tuning=False):
    networks = load_networks(folder, SEEDS[case])
    X, y, X_held_out, y_held_out = load_training_data(folder, SEEDS[case])
    members = Members(lambda: networks)
    if tuning:
        others = {"FMNIST": load_images(folder, "fashion_mnist", N_OTHERS, "x_tune")}
        known = X_held_out[:N_TEST], y_held_out[:N_TEST]
        return Case(networks[0], X, y, *known, others, members)
    with np.load(folder / "mnist.npz", allow_pickle=False) as data:
        X_test, y_test = shuffled(
            scaled(data["x_test"]), data["y_test"].astype(np.int64), n_rows=N_TEST
        )
    others = {name: load_images(folder, file, N_OTHERS) for name, file in OOD_SETS.items()}
    return Case(networks[0], X, y, X_test, y_test, others, members)


FAMILY = Family(
    name="mnist",
    title="MNIST",
    load=load,
    cases=tuple(SEEDS),
    near=("EMNIST", "KMNIST"),
    far=("FMNIST", "OMNIGLOT"),
    rows=(500, 1000, N_OTHERS),
    settings={},
    arguments={
        "MCDropout": {"n_samples": 256},
        "SWAG": {"parameters": 3},
        "CyclicalSGHMC": {"parameters": 3},
    },
)
