"""The findings on measured operator tables (H100, H200, vLLM)."""

from __future__ import annotations

from tests.simulator.findings import Findings


class TestFindingsOnTables(Findings):
    """Times that vLLM's operators took on H100 and H200."""

    tables = "aiconfigurator"
    least_batch_ratio = 2.0
    least_mixed_gain = 1.0
