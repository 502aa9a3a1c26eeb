"""How different are the found models? Adversarial models against as many members of an ensemble.

(i) Mechanisms: integrated gradients of the class that the given network predicts, for each
of the models and an image. The faster the variance that their principal components explain rises,
the more the models have in common. (ii) Predictions: those of each model on held-out images of
MNIST as one vector, principal components of all vectors, and the area of the convex hull of each
kind of models in the plane of the first two.

Adversarial models are the most divergent feasible ones of the searches for an image of
Omniglot; searches that find none are left out, and so are images with fewer than three. The average
is over images.

    python -m benchmarks.paper.diversity --data DIR --out DIR
"""

import numpy as np
import torch
from scipy.spatial import ConvexHull
from sklearn.decomposition import PCA

import sklearn_quam

from .lenet import LeNet, load_images, load_networks, load_training_data
from .runs import options, report, run, save_figure

N_HELD_OUT = 1000
N_POINTS = 50  # of each integral
FEWEST_MODELS = 3  # that have a convex hull


def adversarial_networks(estimator, image):
    """Return the feasible rival models of an image, as networks."""
    (models,) = estimator.adversarial_models(image[None])
    networks = []
    for model in models:
        if model["feasible"]:
            network = LeNet()
            network.load_state_dict(model["state_dict"])
            networks.append(network.eval())
    return networks


def attributions(networks, image, given):
    """Return the integrated gradients of each network for one image, as vectors of length one."""
    image = torch.tensor(image[None])
    with torch.no_grad():
        target = int(given(image).argmax())
    points, weights = (torch.tensor(part) for part in np.polynomial.legendre.leggauss(N_POINTS))
    shares = ((points + 1) / 2).float().reshape(-1, 1, 1, 1)
    vectors = []
    for network in networks:
        images = (shares * image).requires_grad_()
        (slopes,) = torch.autograd.grad(network(images)[:, target].sum(), images)
        vectors.append((torch.einsum("p,p...->...", weights.float(), slopes) * image[0]).ravel())
    return np.array([vector / vector.norm() for vector in vectors])


def predictions(networks, images):
    with torch.no_grad():
        return np.array(
            [net(torch.tensor(images)).softmax(dim=1).numpy().ravel() for net in networks]
        )


def compare(estimator, members, image, held_out):
    adversarial = adversarial_networks(estimator, image)
    result = {"n_models": len(adversarial)}
    if len(adversarial) < FEWEST_MODELS:
        return result
    kinds = {"adversarial": adversarial, "ensemble": members[: len(adversarial)]}
    vectors = {name: predictions(networks, held_out) for name, networks in kinds.items()}
    plane = PCA(2).fit(np.concatenate(list(vectors.values())))
    for name, networks in kinds.items():
        shares = PCA().fit(attributions(networks, image, members[0])).explained_variance_ratio_
        unused = np.zeros(len(members) - len(shares))  # as many components for every image
        result[f"{name}, explained"] = np.cumsum([*shares, *unused]).round(4)
        result[f"{name}, hull"] = float(ConvexHull(plane.transform(vectors[name])).volume)
        centred = vectors[name] - vectors[name].mean(axis=0)
        result[f"{name}, spread"] = float(np.sqrt((centred**2).sum(axis=1).mean()))
    return result


def plot(rows, path):
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(4.5, 3.2), layout="constrained")
    for name, colour, style in (("adversarial", "#0072B2", "o-"), ("ensemble", "#D55E00", "^--")):
        curve = np.mean([row[f"{name}, explained"] for row in rows], axis=0)
        ax.plot(np.arange(1, len(curve) + 1), curve, style, color=colour, label=name)
    ax.set(xlabel="principal components", ylabel="explained share of the attributions' variance")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)
    save_figure(figure, path)


def summarise(rows):
    summary = []
    for name in ("adversarial", "ensemble"):
        curve = np.mean([row[f"{name}, explained"] for row in rows], axis=0)
        summary.append(
            {
                "models": name,
                "number": float(np.mean([row["n_models"] for row in rows])),
                "first component": float(curve[0]),
                "first three": float(curve[2]),
                "hull": float(np.mean([row[f"{name}, hull"] for row in rows])),
                "spread": float(np.mean([row[f"{name}, spread"] for row in rows])),
            }
        )
    return summary


def main():
    chosen = options(__doc__, data=True, images=20)
    torch.set_num_threads(1)
    members = load_networks(chosen.data, 42)
    X, y, X_held_out, _ = load_training_data(chosen.data, 42)
    images = load_images(chosen.data, "omniglot", chosen.images)
    fitted = []

    def task(image):
        if not fitted:
            fitted.append(sklearn_quam.QUAMClassifier(members[0], random_state=0).fit(X, y))
        return compare(fitted[0], members, image, X_held_out[:N_HELD_OUT])

    tasks = {f"image {i}": lambda image=image: task(image) for i, image in enumerate(images)}
    path = chosen.out / "diversity.json"
    settings = {"models": "feasible", "class": "of the given network"}
    results = run(path, settings, tasks).values()
    rows = [row for row in results if row["n_models"] >= FEWEST_MODELS]
    print(f"{len(rows)} of {len(results)} images have at least {FEWEST_MODELS} adversarial models")
    report(path, summarise(rows))
    plot(rows, chosen.out / "diversity.png")


if __name__ == "__main__":
    main()
