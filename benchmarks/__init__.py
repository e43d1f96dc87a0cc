"""The evaluation: what measuring only what can change the decision saves, and how right it stays."""

import os

# Worker processes take all cores already; threads inside numpy would only wait for each other.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
