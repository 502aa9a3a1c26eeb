"""Short forms of user input for messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from reprlib import Repr
from typing import Any

from sklearn.utils._param_validation import InvalidParameterError, validate_params

# Largest number of characters of a value in a message.
LIMIT = 80
# The end of messages of scikit-learn's checks of arguments.
_GOT = re.compile(r"Got (.*) instead\.\Z", re.DOTALL)
# Messages of pandas and numpy about values that are no numbers.
_NO_NUMBERS = ("could not convert", "float() argument", "Cannot convert", "Cannot cast")

# Modules that users import estimators from, besides the package itself.
_PUBLIC_ROOMS = ("ood", "model_selection", "multioutput")

_short = Repr()
_short.maxstring = _short.maxother = _short.maxlong = LIMIT


def shown(value: Any) -> str:
    """Return a value in one line of at most 80 characters, an array as its shape."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape and len(f"{value!r}") > LIMIT:
        return f"{type(value).__name__} of shape {tuple(shape)}"[:LIMIT]
    return cut(_short.repr(value))


def cut(text: Any) -> str:
    """Return a text in one line of at most 80 characters."""
    line = " ".join(str(text).split())
    return line if len(line) <= LIMIT else f"{line[: LIMIT - 3]}..."


def few(labels: Any) -> str:
    """Return some labels, separated by commas."""
    some = [label.item() if hasattr(label, "item") else label for label in labels[:10]]
    return ", ".join(map(shown, some)) + (", ..." if len(labels) > 10 else "")


def is_about_numbers(error: Exception) -> bool:
    """Return whether an error of numpy or pandas is about values that are no numbers."""
    return str(error).startswith(_NO_NUMBERS)


@contextmanager
def short_messages() -> Iterator[None]:
    """Shorten the values in errors of scikit-learn's checks of arguments."""
    try:
        yield
    except InvalidParameterError as error:
        message = _GOT.sub(lambda found: f"Got {cut(found[1])} instead.", str(error))
        raise InvalidParameterError(message) from None


class ShortMessages:
    """An estimator whose checks of arguments have short messages, and whose "?" links its page."""

    _doc_link_module = __name__.partition(".")[0]
    _doc_link_template = "https://sklearn-quam.readthedocs.io/en/latest/api/{path}.html"

    def _doc_link_url_param_generator(self) -> dict[str, str]:
        package, room, *_ = type(self).__module__.split(".")
        names = [package, *[room] * (room in _PUBLIC_ROOMS), type(self).__name__]
        return {"path": ".".join(names)}

    def _validate_params(self) -> None:
        with short_messages():
            super()._validate_params()  # type: ignore[misc]


def checked_arguments(constraints: dict[str, Any], **options: Any) -> Callable[[Any], Any]:
    """Return `validate_params` with short messages."""

    def decorate(function: Any) -> Any:
        checked = validate_params(constraints, **options)(function)

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with short_messages():
                return checked(*args, **kwargs)

        return call

    return decorate
