"""Collectives wider than the tables or than a node: priced from the widest measured one, and flagged."""

from __future__ import annotations

import numpy as np

from fleetsieve_airflow.simulator.curves import Curve, PerfDataError
from fleetsieve_airflow.simulator.perf_database import PerfDatabase

#: GPUs of the narrowest collective.
SMALLEST = 2


def collective(database: PerfDatabase, operator: str, gpus: int) -> tuple[Curve, bool]:
    """Return seconds against message bytes, and whether it goes beyond the tables.

    Within the fast links a ring over more GPUs moves (g-1)/g of the message and adds a hop of latency for
    each doubling. Beyond a node the message is first reduced inside it, then crosses the network once for
    each GPU's share.

    :raises PerfDataError: the database has no such collective at any width.
    """
    hardware = database.hardware
    inside = min(gpus, hardware.gpus_per_node)
    measured, beyond = _widest(database, operator, inside)
    if gpus <= hardware.gpus_per_node:
        return measured, beyond
    nodes = -(-gpus // hardware.gpus_per_node)
    rounds = 2.0 if operator == "all_reduce" else 1.0
    share = measured.x / (inside if operator == "all_reduce" else 1.0)
    crossing = rounds * ((nodes - 1) / nodes * share / hardware.network_bandwidth + hardware.link_latency_s)
    return Curve(measured.x, measured.seconds + crossing), True


def point_to_point(database: PerfDatabase, crosses_nodes: bool) -> Curve:
    """Return seconds to hand bytes from one GPU to the next stage."""
    hardware = database.hardware
    bandwidth = hardware.network_bandwidth if crosses_nodes else hardware.node_bandwidth
    sizes = np.array([0.0, 2.0**33])
    return Curve(sizes, hardware.link_latency_s + sizes / (0.8 * bandwidth))


def _widest(database: PerfDatabase, operator: str, gpus: int) -> tuple[Curve, bool]:
    width = gpus
    while True:
        try:
            found = database.curve(operator, {"gpus": width})
        except PerfDataError:
            if width <= SMALLEST:
                raise
            width = 2 ** ((width - 1).bit_length() - 1)
            continue
        if width == gpus:
            return found, False
        traffic = ((gpus - 1) / gpus) / ((width - 1) / width)
        hops = np.log2(gpus / width)
        return Curve(
            found.x, found.seconds * traffic + hops * float(found.seconds[0]) / np.log2(2 * width)
        ), True
