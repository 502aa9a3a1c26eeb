"""How messages speak about what users have passed: in short."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from reprlib import Repr
from typing import Any

from sklearn.utils._param_validation import InvalidParameterError, validate_params

# Characters of a value that a message shows.
LIMIT = 80
# How scikit-learn's checks of arguments end.
_GOT = re.compile(r"Got (.*) instead\.\Z", re.DOTALL)
# What pandas and numpy say about what is no number; which argument it is, they do not know.
_NO_NUMBERS = ("could not convert", "float() argument", "Cannot convert", "Cannot cast")

_short = Repr()
_short.maxstring = _short.maxother = _short.maxlong = LIMIT


def shown(value: Any) -> str:
    """Return a value as a message shows it: an array by its shape, all else cut short.

    Parameters
    ----------
    value : object
        Anything that a user may pass, a whole data set among them.

    Returns
    -------
    str
        At most 80 characters in one line.
    """
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape and len(f"{value!r}") > LIMIT:
        return f"{type(value).__name__} of shape {tuple(shape)}"[:LIMIT]
    return cut(_short.repr(value))


def cut(text: Any) -> str:
    """Return a text in one line, of at most 80 characters."""
    line = " ".join(str(text).split())
    return line if len(line) <= LIMIT else f"{line[: LIMIT - 3]}..."


def few(labels: Any) -> str:
    """Return some labels as a user would write them."""
    some = [label.item() if hasattr(label, "item") else label for label in labels[:10]]
    return ", ".join(map(shown, some)) + (", ..." if len(labels) > 10 else "")


def is_about_numbers(error: Exception) -> bool:
    """Tell whether an error of numpy or pandas says that something is no number."""
    return str(error).startswith(_NO_NUMBERS)


@contextmanager
def short_messages() -> Iterator[None]:
    """Keep a whole data set out of the errors of scikit-learn's checks of arguments."""
    try:
        yield
    except InvalidParameterError as error:
        message = _GOT.sub(lambda found: f"Got {cut(found[1])} instead.", str(error))
        raise InvalidParameterError(message) from None


class ShortMessages:
    """Lets an estimator's check of its arguments speak in short."""

    def _validate_params(self) -> None:
        with short_messages():
            super()._validate_params()  # type: ignore[misc]


def checked_arguments(constraints: dict[str, Any], **options: Any) -> Callable[[Any], Any]:
    """Return a decorator that checks arguments as scikit-learn does, with short messages.

    Parameters
    ----------
    constraints : dict
        What `sklearn.utils._param_validation.validate_params` takes.
    **options : dict
        Further arguments of it.

    Returns
    -------
    callable
        The decorator.
    """

    def decorate(function: Any) -> Any:
        checked = validate_params(constraints, **options)(function)

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with short_messages():
                return checked(*args, **kwargs)

        return call

    return decorate
