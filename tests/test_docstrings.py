"""Docstrings follow numpydoc, and what several classes share has the same words in all of them."""

import ast
import importlib
import inspect
import pickle
from collections import defaultdict

import pytest
from numpydoc.docscrape import ClassDoc, FunctionDoc
from numpydoc.validate import validate

import sklearn_quam
from sklearn_quam._documented import documented, parsed

from .test_package import MODULES

# "make lint" runs these, "make test" does not.
pytestmark = pytest.mark.lint

# Codes of numpydoc's checks that do not fit this project, with the reason.
IGNORED = {
    "GL01",  # the summary starts on the line of the quotes
    "ES01",  # a summary may say it all
    "SA01",  # no "See Also" needed
    "EX01",  # a class has an example; its methods need none of their own
    "RT02",  # names of return values are welcome
}

METHODS = sorted(
    {name.removesuffix("Classifier") for name in sklearn_quam.__all__ if "Classifier" in name}
)
# What is the same for every method of a task.
SHARED = ["estimator", "link", "noise_variance", "measure", "device", "verbose", "classes_"]
SHARED += ["estimator_", "n_outputs_", "noise_variance_", "reference_loss_", "n_features_in_"]
SHARED += ["conformal_scores_", "feature_names_in_", "parameter_names_", "n_parameters_searched_"]
SHARED += ["conformal_labels_", "logit_scale_"]
# A method may add sentences of its own to these.
SAME_BEGINNING = {"parameters": "The part of the network before it", "memory_limit": "is free."}
# What differs between classifier and regressor of one method, and why.
OF_THE_TASK = {
    "estimator": "names the estimators of the task",
    "link": "names the links of the task",
    "measure": "losses of classes, or variances of values",
    "search": "the automatic one differs",
    "setting": "QUAM's models predict values, but not classes",
    "temperature": "the automatic one differs",
}


def entries_of(kind):
    """Return type and text of all parameters and attributes of a class."""
    doc = ClassDoc(kind)
    items = [*doc["Parameters"], *doc["Attributes"]]
    return {item.name: (item.type, " ".join(item.desc)) for item in items}


DOCS = {
    (name, task): entries_of(getattr(sklearn_quam, name + task))
    for name in METHODS
    for task in ("Classifier", "Regressor")
}


def test_shared_parameters_have_one_text():
    for task in ("Classifier", "Regressor"):
        texts = defaultdict(set)
        for name in METHODS:
            for item, text in DOCS[name, task].items():
                texts[item].add(text)
        for item in SHARED:
            assert len(texts[item]) <= 1, (item, texts[item])
        for item, end in SAME_BEGINNING.items():
            beginnings = {text.split(end)[0] for _, text in texts[item]}
            assert len(beginnings) == 1, (item, beginnings)


def test_classifier_and_regressor_have_one_text():
    for name in METHODS:
        classifier, regressor = DOCS[name, "Classifier"], DOCS[name, "Regressor"]
        for item in classifier.keys() & regressor.keys() - OF_THE_TASK.keys():
            assert classifier[item] == regressor[item], (name, item)


def test_exceptions_are_needed():
    for item in OF_THE_TASK:
        assert any(
            DOCS[name, "Classifier"][item] != DOCS[name, "Regressor"][item]
            for name in METHODS
            if item in DOCS[name, "Classifier"]
        ), item


def public_objects():
    """Yield path and object of all that users import."""
    for module in map(importlib.import_module, MODULES):
        for name in module.__all__:
            yield f"{module.__name__}.{name}", getattr(module, name)


def documented_paths():
    """Yield the paths of public classes and functions, and of the methods that are ours."""
    for path, public in public_objects():
        yield path
        if inspect.isclass(public):
            for name, member in inspect.getmembers(public, callable):
                module = inspect.getmodule(member)
                ours = module is not None and module.__name__.startswith("sklearn_quam")
                if ours and not name.startswith("_") and not name.endswith("_request"):
                    yield f"{path}.{name}"


def test_docstrings_follow_numpydoc():
    found = {path: validate(path)["errors"] for path in documented_paths()}
    errors = [
        (path, code, text)
        for path, all_errors in found.items()
        for code, text in all_errors
        if code not in IGNORED
    ]
    assert not errors


def test_every_public_name_has_an_example():
    assert not [path for path, public in public_objects() if ">>>" not in public.__doc__]


def public_classes():
    """Yield path, arguments and docstring of all classes that users make or get."""
    for path, public in public_objects():
        if inspect.isclass(public) and not issubclass(public, Exception):
            doc = ClassDoc(public, config={"show_class_members": False})
            yield path, inspect.signature(public).parameters, doc


def test_every_constructor_argument_is_documented_once_in_order():
    for path, arguments, doc in public_classes():
        names = [name for entry in doc["Parameters"] for name in entry.name.split(", ")]
        assert names == list(arguments), path


def test_every_entry_has_a_type_and_a_text():
    for path, _, doc in public_classes():
        for entry in (*doc["Parameters"], *doc["Attributes"]):
            assert entry.type, (path, entry.name)
            assert "".join(entry.desc).strip(), (path, entry.name)


def test_defaults_are_those_of_the_signature():
    for path, arguments, doc in public_classes():
        for entry in doc["Parameters"]:
            default = arguments[entry.name.split(", ")[0]].default
            _, _, said = entry.type.partition("default=")
            if isinstance(default, str):
                assert said == f'"{default}"', (path, entry.name)
            elif default is None or isinstance(default, (bool, int, float)):
                assert ast.literal_eval(said) == default, (path, entry.name)
            elif default is inspect.Parameter.empty:
                assert not said, (path, entry.name)


SHARED_ENTRIES = parsed(
    """
    Parameters
    ----------
    a : int
        First.
    b : str
        Second.

    Attributes
    ----------
    a_ : int
        Fitted.
    parameter_names_ : list
        For some classes only.
    """
)


@documented(SHARED_ENTRIES)
class One:
    """Do one thing.

    Described.

    Parameters
    ----------
    own : float, default=0.5
        Of this class.
    b
        Continued.

    References
    ----------
    A paper.

    Examples
    --------
    >>> 1
    1
    """

    def __init__(self, a, own=0.5, *, b="x"):
        pass


@documented(SHARED_ENTRIES, One)
class Two:
    """Do another thing.

    Parameters
    ----------
    b

    Attributes
    ----------
    parameter_names_
    """

    def __init__(self, b=None, own=0.5):
        pass


@documented(SHARED_ENTRIES, also=(One,))
class Three:
    """Do a third thing."""

    def __init__(self, own=0.5):
        pass


def test_shared_entries_are_filled_in():
    assert (
        One.__doc__
        == """Do one thing.

Described.

Parameters
----------
a : int
    First.
own : float, default=0.5
    Of this class.
b : str, default="x"
    Second.
    Continued.

Attributes
----------
a_ : int
    Fitted.

References
----------
A paper.

Examples
--------
>>> 1
1
"""
    )


def test_a_twin_is_filled_in():
    doc = ClassDoc(Two)
    assert doc["Summary"] == ["Do another thing."]
    assert doc["Extended Summary"] == ["Described."]
    assert [(p.name, p.type, p.desc) for p in doc["Parameters"]] == [
        ("b", "str, default=None", ["Second."]),
        ("own", "float, default=0.5", ["Of this class."]),
    ]
    assert [each.name for each in doc["Attributes"]] == ["parameter_names_", "a_"]
    assert doc["References"] == ["A paper."]


def test_arguments_of_other_classes_are_filled_in_and_nothing_else():
    doc = ClassDoc(Three)
    assert [each.name for each in doc["Parameters"]] == ["own"]
    assert not doc["References"]
    assert not doc["Extended Summary"]


def test_an_argument_that_nobody_describes_is_an_error():
    with pytest.raises(KeyError, match="unknown"):

        @documented(SHARED_ENTRIES)
        class _Wrong:
            """Say nothing."""

            def __init__(self, unknown):
                pass


def test_a_class_without_a_docstring_stays_as_it_is():
    class Silent:
        pass

    assert documented(SHARED_ENTRIES, One)(Silent) is Silent
    assert Silent.__doc__ is None


def test_decorated_classes_can_be_pickled():
    assert pickle.loads(pickle.dumps(Two)) is Two


def test_methods_take_entries_of_the_class_but_have_defaults_of_their_own():
    @documented(SHARED_ENTRIES)
    class Picture:
        """Draw.

        Parameters
        ----------
        own : ndarray of shape (3,), default=None
            Of this class.
        """

        def __init__(self, own=None):
            pass

        @classmethod
        def make(cls, own, *, b=2):
            """Make one.

            Returns
            -------
            Picture
                The picture.
            """

    doc = FunctionDoc(Picture.make)
    assert [(p.name, p.type, p.desc) for p in doc["Parameters"]] == [
        ("own", "array-like of shape (3,)", ["Of this class."]),
        ("b", "str, default=2", ["Second."]),
    ]
    assert [each.type for each in doc["Returns"]] == ["Picture"]
