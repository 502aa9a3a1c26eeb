"""
Text: unknown intents
=====================

If a language model is too large to be run twice, compute the features of all texts once, and pass
the *head* alone. The head does not know intents of which it has seen no sentence.

The sentences here are made of random words of each intent. With a sentence encoder, features are
one line, ``features = encoder.encode(sentences)``; all else stays.
"""

# %%
# Sentences
# ---------
# Six intents; the head has seen no sentence of the last two.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline

from sklearn_quam import QUAMClassifier
from sklearn_quam.display import UncertaintyHistogramDisplay

TOPICS = {
    "balance": "balance money account savings left have",
    "transfer": "transfer send pay move euros friend",
    "weather": "weather rain sunny warm tomorrow outside",
    "alarm": "alarm wake morning clock seven early",
    "recipe": "recipe cook dinner pasta bake soup",
    "travel": "flight train ticket hotel paris trip",
}
COMMON = (
    "how much what is the will it please can you i want to set find"
)
KNOWN = list(TOPICS)[:4]
rng = np.random.default_rng(0)


def sentence(intent):
    """Return words of an intent, common words, and words of another."""
    topic, common = TOPICS[intent].split(), COMMON.split()
    other = TOPICS[rng.choice(KNOWN)].split()
    words = [
        *rng.choice(common, 4),
        *rng.choice(topic, 2),
        *rng.choice(other, 2),
    ]
    return " ".join(rng.permutation(words))


y_train = rng.choice(KNOWN, 400)
train = [sentence(intent) for intent in y_train]
new_intents = np.array(
    [*rng.choice(KNOWN, 80), *rng.choice(["recipe", "travel"], 80)]
)
new = [sentence(intent) for intent in new_intents]
unknown = ~np.isin(new_intents, KNOWN)
print(train[0], "->", y_train[0])

# %%
# Features, computed elsewhere
# ----------------------------
# The stand-in for a sentence encoder was fitted to sentences of all kinds, without labels.

intents = rng.choice(list(TOPICS), 600)
reducer = TruncatedSVD(20, random_state=0)
encoder = make_pipeline(TfidfVectorizer(), reducer)
encoder.fit([sentence(intent) for intent in intents])
features, new_features = map(encoder.transform, (train, new))

# %%
# The head alone
# --------------
# A linear layer on the features, here scikit-learn's; an ``nn.Linear`` would do.

head = LogisticRegression(C=100, max_iter=1000).fit(features, y_train)
quam = QUAMClassifier(head, random_state=0).fit(features, y_train)
uncertainty, diagnostics = quam.predict_uncertainty(
    new_features, return_diagnostics=True
)

proba = head.predict_proba(new_features)
entropy = -(proba * np.log(np.maximum(proba, 1e-12))).sum(axis=1)
print("entropy", round(roc_auc_score(unknown, entropy), 3))
print(
    "QUAM   ", round(roc_auc_score(unknown, uncertainty.epistemic), 3)
)

UncertaintyHistogramDisplay.from_predictions(
    uncertainty.epistemic[~unknown],
    uncertainty.epistemic[unknown],
    xlabel="epistemic uncertainty (nats)",
)
plt.show()

# %%
# Questions to ask back
# ---------------------
# The rival class is the answer of another head that is about as good on the training sentences. An
# assistant can ask whether it is meant.

for row in np.argsort(-uncertainty.epistemic)[:4]:
    answer = quam.predict(new_features[row : row + 1])[0]
    rival = diagnostics.rival[row]
    print(f"{new[row]!r}: {answer}, or {rival}? ({new_intents[row]})")
