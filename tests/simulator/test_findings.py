"""The findings on data sheets alone; with measured tables they are in tests/simulator_aic."""

from __future__ import annotations

from tests.simulator.findings import Findings


class TestFindings(Findings):
    """Times of the H100's and H200's data sheets."""

    tables = "roofline"
    least_batch_ratio = 3.0
    least_mixed_gain = 1.05
