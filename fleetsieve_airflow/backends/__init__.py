"""Measuring devices behind one protocol: recorded grids, simulators, a local server, Slurm jobs.

A backend turns a point into a measurement and knows nothing of deciding. May import records, evidence,
errors, serialization and serving. This file imports nothing, so that naming a backend costs nothing.
"""
