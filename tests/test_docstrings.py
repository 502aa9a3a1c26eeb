"""Docstrings follow numpydoc, and shared entries are filled in."""

import ast
import importlib
import inspect

import pytest
from numpydoc.docscrape import ClassDoc, FunctionDoc
from numpydoc.validate import validate

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


def test_every_public_name_but_warnings_has_an_example():
    for path, public in public_objects():
        is_warning = inspect.isclass(public) and issubclass(public, Warning)
        assert is_warning or ">>>" in public.__doc__, path


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

    Examples
    --------
    >>> print("{name}: {arguments}")
    {name}: {arguments}
    """
)


@documented(SHARED_ENTRIES)
class One:
    """Do one thing.

    Described.

    Parameters
    ----------
    own : ndarray of shape (3,), default=0.5
        Of this class.
    b
        Continued.

    References
    ----------
    A paper.
    """

    def __init__(self, a, own=0.5, *, b="x"):
        pass

    def make(self, own, *, b=2):
        """Make one.

        Returns
        -------
        One
            The result.
        """


@documented(SHARED_ENTRIES, One, example="b=0")
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


def entries(doc):
    return [(entry.name, entry.type, entry.desc) for entry in doc["Parameters"]]


def test_shared_entries_are_filled_in():
    doc = ClassDoc(One)
    assert entries(doc) == [
        ("a", "int", ["First."]),
        ("own", "ndarray of shape (3,), default=0.5", ["Of this class."]),
        ("b", 'str, default="x"', ["Second.", "Continued."]),
    ]
    assert [each.name for each in doc["Attributes"]] == ["a_"]
    doc = ClassDoc(Two)
    assert doc["Summary"] == ["Do another thing."]
    assert doc["Extended Summary"] == ["Described."]
    own = ("own", "ndarray of shape (3,), default=0.5", ["Of this class."])
    assert entries(doc) == [("b", "str, default=None", ["Second."]), own]
    assert [each.name for each in doc["Attributes"]] == ["parameter_names_", "a_"]
    assert doc["References"] == ["A paper."]
    assert doc["Examples"] == ['>>> print("Two: b=0")', "Two: b=0"]
    doc = ClassDoc(Three)
    assert entries(doc) == [own]
    assert not doc["References"]
    assert not doc["Extended Summary"]


def test_methods_take_entries_of_the_class_but_have_defaults_of_their_own():
    assert entries(FunctionDoc(One.make)) == [
        ("own", "array-like of shape (3,)", ["Of this class."]),
        ("b", "str, default=2", ["Second.", "Continued."]),
    ]


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
