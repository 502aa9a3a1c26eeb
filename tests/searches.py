"""QUAM with the arguments of its search beside its own, for tests that vary both."""

from sklearn_quam import PenaltySearch

SEARCH_OPTIONS = set(PenaltySearch().get_params())
# Training rows of most tests.
N_ROWS = 60


def quam(kind, net, n_rows=N_ROWS, **options):
    """Return an estimator; the arguments of a `PenaltySearch` go to its search.

    Temperature and slack are those of the mean loss of the training rows.
    """
    for name in ("temperature", "slack"):
        if isinstance(options.get(name), float | int):
            options[name] *= n_rows
    search = {name: options.pop(name) for name in SEARCH_OPTIONS & options.keys()}
    return kind(net, search=PenaltySearch(**search), **{"parameters": "all", **options})
