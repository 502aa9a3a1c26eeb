"""What a row costs with a whole network, against the head alone and against the bare network.

Every network of ``make test-networks`` that ends in a chain of linear layers. Times are those of
``predict_uncertainty`` on the same rows, one after the other in one run. Run with
``make bench-networks``.
"""

import statistics
import time
import warnings

import torch

from sklearn_quam import QUAMClassifier
from tests.real import conftest
from tests.real.architectures import ARCHITECTURES, Y, features_and_head, made, output_of

N_ROWS, REPEATS = 16, 3


def seconds(function):
    """Return the median time of a call."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def some(rows):
    if isinstance(rows, dict):
        return {name: part[:N_ROWS] for name, part in rows.items()}
    return rows[:N_ROWS]


def report(architecture):
    network = made(architecture)
    whole = QUAMClassifier(network, random_state=0).fit(architecture.rows, Y)
    values, head = features_and_head(architecture, network, whole.parameter_names_)
    alone = QUAMClassifier(head, random_state=0).fit(values, Y)
    rows = some(architecture.rows)
    ours = seconds(lambda: whole.predict_uncertainty(rows))
    others = seconds(lambda: alone.predict_uncertainty(values[:N_ROWS]))
    forward = seconds(lambda: output_of(network, rows))
    print(
        f"{architecture.package:14}{architecture.name:28}{1e3 * ours / N_ROWS:8.1f}"
        f"{ours / others:14.2f}{1e3 * forward / N_ROWS:14.2f}",
        flush=True,
    )


def main():
    assert conftest.TORCHVISION
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(f"{'package':14}{'network':28}{'ms a row':>8}{'of head alone':>14}{'forward ms':>14}")
    for architecture in ARCHITECTURES:
        if architecture.execution == "matmul":
            report(architecture)


if __name__ == "__main__":
    main()
