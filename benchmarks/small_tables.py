"""Small tables, each with a network and rows that it cannot know.

The folder of the data holds npz files: ``heart_hospitals`` (X_<hospital>, y_<hospital>),
``uci/wine-quality-red`` and ``uci/energy`` (X, y), and in ``adbench/`` any number of tables with
anomalies, as ADBench has them (X, and y with 1 for anomalies). What is not there is left out.
"""

import warnings

import numpy as np
from sklearn import datasets
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.impute import SimpleImputer
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

N_ROWS = 3000  # of a table, at most
NETWORK = {"hidden_layer_sizes": [100], "max_iter": 200}
LOADED = ("iris", "wine", "breast_cancer", "digits")
# Named by features x classes. Features, classes, rows, standard deviation of a class.
BLOBS = {"blobs 2x4": (2, 4, 800, 1.0), "blobs 30x6": (30, 6, 1200, 8.0)}
# Features, informative ones, classes, rows, distance of the classes.
MIXTURES = {
    "mixture 8x3": (8, 6, 3, 900, 0.7),
    "mixture 10x4": (10, 8, 4, 1500, 1.5),
    "mixture 20x2": (20, 5, 2, 1000, 0.8),
    "mixture 50x8": (50, 20, 8, 3000, 1.0),
    "mixture 16x10": (16, 12, 10, 2000, 2.0),
    "mixture 30x5": (30, 10, 5, 1200, 1.2),
}
# Classes are shells around each other. Features, classes, rows.
SHELLS = {"shells 6x4": (6, 4, 1200), "shells 10x3": (10, 3, 1200)}
SCALES = ("wine-quality-red", "energy")  # classes are steps of a scale
HOSPITALS = ("hungarian", "switzerland", "va")  # a network of Cleveland is asked about them
N_CLUSTERS = 5  # of normal rows, where there are no classes to train on
SETTINGS = {"rows": N_ROWS, "network": NETWORK, "blobs": BLOBS, "mixtures": MIXTURES}
SETTINGS |= {"shells": SHELLS, "clusters": N_CLUSTERS}


def names(folder):
    """Return the names of all tables; some are there only with a folder of data."""
    found = [*LOADED, *BLOBS, *MIXTURES, *SHELLS]
    if folder is None:
        return found
    if (folder / "heart_hospitals.npz").exists():
        found += ["heart", *(f"heart in {hospital}" for hospital in HOSPITALS)]
    found += [name for name in SCALES if (folder / "uci" / f"{name}.npz").exists()]
    return found + [f"adbench {path.stem}" for path in sorted((folder / "adbench").glob("*.npz"))]


def load(name, seed, folder):
    """Return a table; those that are made differ from seed to seed."""
    if name in LOADED:
        return getattr(datasets, f"load_{name}")(return_X_y=True)
    if name in BLOBS:
        n_features, n_classes, n_rows, spread = BLOBS[name]
        return datasets.make_blobs(
            n_rows, n_features, centers=n_classes, cluster_std=spread, random_state=seed
        )
    if name in MIXTURES:
        n_features, n_informative, n_classes, n_rows, distance = MIXTURES[name]
        return datasets.make_classification(
            n_rows,
            n_features,
            n_informative=n_informative,
            n_classes=n_classes,
            class_sep=distance,
            flip_y=0,
            random_state=seed,
        )
    if name in SHELLS:
        n_features, n_classes, n_rows = SHELLS[name]
        return datasets.make_gaussian_quantiles(
            n_samples=n_rows, n_features=n_features, n_classes=n_classes, random_state=seed
        )
    if name == "heart":
        with np.load(folder / "heart_hospitals.npz", allow_pickle=False) as data:
            hospitals = ("cleveland", "hungarian")
            X = np.concatenate([data[f"X_{hospital}"] for hospital in hospitals])
            y = np.concatenate([data[f"y_{hospital}"] for hospital in hospitals])
        return X, (y > 0).astype(int)
    with np.load(folder / "uci" / f"{name}.npz", allow_pickle=False) as data:
        X, y = data["X"], data["y"]
    if name == "energy":
        return X, np.digitize(y, np.quantile(y, [0.25, 0.5, 0.75]))
    return X, np.clip(np.round(y), 5, 7).astype(int)


def load_shifted(name, seed, folder):
    """Return a table and rows from elsewhere, or None for a table without such rows."""
    if name.startswith("heart in "):
        with np.load(folder / "heart_hospitals.npz", allow_pickle=False) as data:
            X, y = data["X_cleveland"], data["y_cleveland"]
            X_other = data[f"X_{name.removeprefix('heart in ')}"]
            cholesterol = list(data["columns"]).index("chol")
        # Zero means that it was not measured.
        X, X_other = X.copy(), X_other.copy()
        for part in (X, X_other):
            part[part[:, cholesterol] == 0, cholesterol] = np.nan
        return X, (y > 0).astype(int), X_other
    if name.startswith("adbench "):
        with np.load(folder / "adbench" / f"{name.removeprefix('adbench ')}.npz") as data:
            X, is_anomaly = data["X"], data["y"].astype(bool)
        X, X_other = X[~is_anomaly], X[is_anomaly]
        clusters = KMeans(N_CLUSTERS, n_init=3, random_state=seed)
        return X, clusters.fit_predict(StandardScaler().fit_transform(X)), X_other
    return None


def prepare(name, seed, folder):
    """Return a network, its data, known samples with their labels, and unknown samples."""
    rng = np.random.default_rng(seed)
    shifted = load_shifted(name, seed, folder)
    if shifted is None:
        X, y = load(name, seed, folder)
    else:
        X, y, X_other = shifted
    chosen = rng.permutation(len(X))[:N_ROWS]
    X, y = X[chosen], y[chosen]
    classes = np.unique(y)
    class_left_out = shifted is None and len(classes) > 2 and name not in SCALES
    unknown = np.zeros(len(X), dtype=bool)
    if class_left_out:
        unknown = y == classes[seed % len(classes)]
    X_train, X_known, y_train, y_known = train_test_split(
        X[~unknown], y[~unknown], test_size=0.4, random_state=seed, stratify=y[~unknown]
    )
    if shifted is not None:
        X_unknown = X_other[rng.permutation(len(X_other))]
    else:
        X_unknown = X[unknown] if class_left_out else rng.permuted(X_known, axis=0)
    # Values are missing in some tables only.
    scaler = make_pipeline(SimpleImputer(strategy="median"), StandardScaler()).fit(X_train)
    X_train, X_known, X_unknown = map(scaler.transform, (X_train, X_known, X_unknown))
    return train(X_train, y_train, 10 * seed), X_train, y_train, X_known, y_known, X_unknown


def pooled(name, seed, n_points, folder):
    """Return a network, its data, samples to judge (known ones first), and how many are known."""
    network, X, y, X_known, _, X_unknown = prepare(name, seed, folder)
    X_known = X_known[:n_points]
    return network, X, y, np.concatenate([X_known, X_unknown[:n_points]]), len(X_known)


def train(X, y, seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return MLPClassifier(**NETWORK, random_state=seed).fit(X, y)


def logits(network, X):
    """Return the logits of an MLPClassifier; of two classes they are +-half of its only output."""
    for weight, bias in zip(network.coefs_[:-1], network.intercepts_[:-1], strict=True):
        X = np.maximum(X @ weight + bias, 0)
    found = X @ network.coefs_[-1] + network.intercepts_[-1]
    return found if found.shape[1] > 1 else np.hstack([-found / 2, found / 2])
