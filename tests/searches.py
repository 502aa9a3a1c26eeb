"""QUAM with the arguments of its search beside its own, for tests that vary both."""

from sklearn_quam import PenaltySearch

SEARCH_OPTIONS = set(PenaltySearch().get_params())


def quam(kind, net, **options):
    """Return an estimator; the arguments of a `PenaltySearch` go to its search."""
    search = {name: options.pop(name) for name in SEARCH_OPTIONS & options.keys()}
    return kind(net, search=PenaltySearch(**search), **options)
