"""What several classes share is documented in the same words."""

from collections import defaultdict

import pytest
from numpydoc.docscrape import ClassDoc

import sklearn_quam

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
    "learning_rate": "regressors step along the squared error",
    "search": "the automatic one differs",
    "setting": "QUAM's models predict values, but not classes",
    "targets": "classes, or directions",
    "sampling": "a profile is one of log-odds, or of means",
    "temperature": "the automatic one differs",
}


def documented(kind):
    """Return type and text of all parameters and attributes of a class."""
    doc = ClassDoc(kind)
    items = [*doc["Parameters"], *doc["Attributes"]]
    return {item.name: (item.type, " ".join(item.desc)) for item in items}


DOCS = {
    (name, task): documented(getattr(sklearn_quam, name + task))
    for name in METHODS
    for task in ("Classifier", "Regressor")
}


@pytest.mark.parametrize("task", ["Classifier", "Regressor"])
def test_shared_parameters_have_one_text(task):
    texts = defaultdict(set)
    for name in METHODS:
        for item, text in DOCS[name, task].items():
            texts[item].add(text)
    for item in SHARED:
        assert len(texts[item]) <= 1, (item, texts[item])
    for item, end in SAME_BEGINNING.items():
        beginnings = {text.split(end)[0] for _, text in texts[item]}
        assert len(beginnings) == 1, (item, beginnings)


@pytest.mark.parametrize("name", METHODS)
def test_classifier_and_regressor_have_one_text(name):
    classifier, regressor = DOCS[name, "Classifier"], DOCS[name, "Regressor"]
    for item in classifier.keys() & regressor.keys() - OF_THE_TASK.keys():
        assert classifier[item] == regressor[item], item


def test_exceptions_are_needed():
    for item in OF_THE_TASK:
        assert any(
            DOCS[name, "Classifier"][item] != DOCS[name, "Regressor"][item]
            for name in METHODS
            if item in DOCS[name, "Classifier"]
        ), item
