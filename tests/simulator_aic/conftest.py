"""Tests on the measured operator tables; collected only where that optional package is installed."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("aiconfigurator_core") else ["test_*.py"]
