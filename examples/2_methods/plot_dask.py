"""
The same on a dask cluster
==========================

Samples are independent, so that many workers can share them, also on other machines. QUAM uses
joblib: within ``joblib.parallel_config(backend="dask")`` the workers of a dask cluster do the
searches, and the results are the same.
"""

# %%
# A network, and digits to be judged
# ----------------------------------

import joblib
import matplotlib.pyplot as plt
import numpy as np
from dask.distributed import Client, LocalCluster
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

from sklearn_quam import QUAMClassifier

X, y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32)
known = y < 5
X_train, y_train = X[known][:500], y[known][:500]
X_new = np.r_[X[known][500:560], X[~known][:60]]
network = MLPClassifier((30, 30), max_iter=300, random_state=0)
network.fit(X_train, y_train)
quam = QUAMClassifier(network, random_state=0).fit(X_train, y_train)

# %%
# In this process
# ---------------

local = quam.predict_uncertainty(X_new)

# %%
# On a cluster
# ------------
# Here are two workers of a cluster within this process. For another machine, pass
# the address of its scheduler to ``Client`` instead; the network and the training data are sent
# there.

options = {
    "n_workers": 2,
    "processes": False,
    "dashboard_address": None,
}
with (
    LocalCluster(threads_per_worker=1, **options) as cluster,
    Client(cluster) as client,
    joblib.parallel_config(backend="dask"),
):
    remote = quam.predict_uncertainty(X_new)

# %%
# The same result
# ---------------

np.testing.assert_allclose(remote, local, rtol=1e-3, atol=1e-6)
_, ax = plt.subplots(figsize=(5, 4), layout="constrained")
for name, own, colour, marker in (
    ("known digits", slice(60), "#0072B2", "o"),
    ("unknown digits", slice(60, None), "#D55E00", "^"),
):
    here, there = local.epistemic[own], remote.epistemic[own]
    ax.loglog(here, there, marker, color=colour, label=name)
ax.set(xlabel="in this process", ylabel="on the cluster")
ax.set_title("epistemic uncertainty (nats)")
ax.legend(frameon=False)
plt.show()
