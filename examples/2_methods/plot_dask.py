"""
The same on a dask cluster
==========================

Rows are independent, so that they can be spread over many workers, also of other machines. QUAM
goes through joblib: within ``joblib.parallel_config(backend="dask")`` the workers of a dask cluster
do the searches, and the results are the same.
"""

# %%
# A network, and rows to be judged
# --------------------------------

import joblib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from dask.distributed import Client, LocalCluster, get_task_stream
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

from sklearn_quam import QUAMClassifier

X, y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32)
known = y < 5
X_train, y_train = X[known][:500], y[known][:500]
X_new = np.r_[X[known][500:560], X[~known][:60]]
kind = np.repeat(["known digit", "unknown digit"], 60)
network = MLPClassifier((30, 30), max_iter=300, random_state=0).fit(X_train, y_train)
quam = QUAMClassifier(network, random_state=0).fit(X_train, y_train)

# %%
# In this process
# ---------------

local = quam.predict_uncertainty(X_new)

# %%
# On a cluster
# ------------
# Two workers of a cluster within this process are enough to try it out. For another machine, pass
# the address of its scheduler to ``Client`` instead; the network and the training data are sent
# there.

with (
    LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
    ) as cluster,
    Client(cluster) as client,
    get_task_stream(client) as stream,
    joblib.parallel_config(backend="dask"),
):
    remote = quam.predict_uncertainty(X_new)
tasks = pd.DataFrame(
    [
        {"worker": task["worker"], "start": step["start"], "stop": step["stop"]}
        for task in stream.data
        for step in task["startstops"]
        if step["action"] == "compute"
    ]
)

# %%
# The same result
# ---------------

difference = max(np.abs(a - b).max() for a, b in zip(local, remote, strict=True))
print(f"largest difference: {difference:.1e} nats")
np.testing.assert_allclose(remote, local, rtol=1e-3, atol=1e-6)

# %%
# Who did what
# ------------
# On the left the uncertainty of each row, here and there; on the right which worker was busy when.

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
limits = local.epistemic.min() / 2, local.epistemic.max() * 2
left.plot(limits, limits, color="0.6", lw=1, zorder=0)
for name, colour, marker in (
    ("known digit", "#0072B2", "o"),
    ("unknown digit", "#D55E00", "^"),
):
    own = kind == name
    left.scatter(
        local.epistemic[own], remote.epistemic[own], 20, color=colour, marker=marker, label=name
    )
left.set(xscale="log", yscale="log", xlabel="in this process", ylabel="on the cluster")
left.set_title("epistemic uncertainty (nats)")
left.legend(frameon=False)

begin = tasks["start"].min()
for number, (_, own) in enumerate(tasks.groupby("worker")):
    bars = np.c_[own["start"] - begin, own["stop"] - own["start"]]
    right.broken_barh(bars, (number - 0.3, 0.6), color="#0072B2", edgecolor="white", lw=1.5)
right.set(title="tasks", xlabel="seconds", yticks=[0, 1], yticklabels=["worker 0", "worker 1"])
right.set_ylim(-0.7, 1.7)
for ax in (left, right):
    ax.spines[["top", "right"]].set_visible(False)
plt.show()
