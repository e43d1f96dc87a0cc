"""GPUs as the simulator knows them: memory, speeds, node size, price, and what a power cap does to them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fleetsieve_airflow.simulator.curves import PerfDataError

GIB = 2.0**30

#: How the clock follows a power cap: (cap / power) ** 0.38. Half the power of an H100 costs a prompt 1.3
#: times its time (Splitwise, ISCA 2024, its power-capped H100); memory-bound work loses nothing.
POWER_EXPONENT = 0.38


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One kind of GPU in its node.

    :param gpus_per_node: GPUs that reach each other over the fast links (72 in a GB200 rack, 8 in an HGX
        board).
    :param bf16_flops: dense bfloat16 operations per second; fp8 is twice that where ``fp8`` and fp4 four
        times where ``fp4``.
    :param node_bandwidth: bytes per second and GPU, one direction, within a node; ``network_bandwidth``
        between nodes.
    :param clock: share of the full clock that a power cap leaves.
    """

    name: str
    memory_bytes: float
    memory_bandwidth: float
    bf16_flops: float
    fp8: bool = True
    fp4: bool = False
    gpus_per_node: int = 8
    node_bandwidth: float = 450e9
    network_bandwidth: float = 50e9
    link_latency_s: float = 10e-6
    power_w: float = 700.0
    price_per_gpu_hour: float | None = None
    clock: float = 1.0

    def flops(self, dtype: str) -> float:
        """Return dense operations per second for a number format; one the GPU lacks runs as bfloat16."""
        if self.fp4 and (dtype == "nvfp4" or dtype.startswith("w4a4") or dtype == "w4a8_mxfp4_mxfp8"):
            return 4.0 * self.bf16_flops
        if self.fp8 and (dtype.startswith("fp8") or dtype.startswith("w4a8")):
            return 2.0 * self.bf16_flops
        return self.bf16_flops

    def capped(self, power_w: float) -> Hardware:
        """Return this GPU under a power cap: compute slows with the clock, memory and links do not.

        :raises PerfDataError: the cap is not above 0 or is above the GPU's power.
        """
        if not 0.0 < power_w <= self.power_w:
            raise PerfDataError(
                f"Power cap of {self.name}: {power_w} W; allowed: above 0 and at most {self.power_w} W."
            )
        if power_w == self.power_w:
            return self
        return replace(
            self,
            name=f"{self.name}@{power_w:g}W",
            power_w=power_w,
            clock=self.clock * (power_w / self.power_w) ** POWER_EXPONENT,
        )


def _gpu(
    name: str, memory_gib: float, bandwidth_tb: float, bf16_tflops: float, power_w: float, price: float
) -> Hardware:
    return Hardware(
        name=name,
        memory_bytes=memory_gib * GIB,
        memory_bandwidth=bandwidth_tb * 1e12,
        bf16_flops=bf16_tflops * 1e12,
        power_w=power_w,
        price_per_gpu_hour=price,
    )


_H100 = _gpu("h100", 80, 3.35, 989, 700, 2.8)
_B200 = replace(_gpu("b200", 180, 8.0, 2250, 1000, 5.5), fp4=True, node_bandwidth=900e9)

#: Vendor data sheets (dense figures). Prices are round list-price orders of magnitude for examples: give your
#: own.
KNOWN_HARDWARE: dict[str, Hardware] = {
    item.name: item
    for item in (
        _H100,
        _gpu("h200", 141, 4.8, 989, 700, 3.5),
        replace(
            _gpu("a100", 80, 2.04, 312, 400, 1.6), fp8=False, node_bandwidth=300e9, network_bandwidth=25e9
        ),
        _B200,
        replace(_gpu("gb200", 185, 8.0, 2500, 1200, 6.5), fp4=True, node_bandwidth=900e9, gpus_per_node=72),
        replace(_gpu("l40s", 48, 0.864, 362, 350, 0.9), node_bandwidth=32e9, network_bandwidth=12.5e9),
        _gpu("mi300x", 192, 5.3, 1307, 750, 2.2),
        _gpu("mi325x", 256, 6.0, 1307, 1000, 2.6),
    )
}


def hardware_named(name: str, price_per_gpu_hour: float | None = None) -> Hardware:
    """Return a known GPU by name; ``h100@350W`` is an H100 capped at 350 W.

    :raises PerfDataError: naming the GPUs that are known.
    """
    kind, _, cap = name.lower().partition("@")
    if kind not in KNOWN_HARDWARE:
        raise PerfDataError(f"No GPU named {name!r}; known: {', '.join(sorted(KNOWN_HARDWARE))}.")
    found = KNOWN_HARDWARE[kind]
    if price_per_gpu_hour is not None:
        found = replace(found, price_per_gpu_hour=price_per_gpu_hour)
    return found.capped(watts(cap, name)) if cap else found


def watts(cap: str, name: str) -> float:
    """Read a power cap as it stands behind the ``@`` of a GPU's name, e.g. ``350W``.

    :raises PerfDataError: it is not a number.
    """
    try:
        return float(cap.strip().rstrip("wW"))
    except ValueError:
        raise PerfDataError(f"Power cap {cap!r} of {name!r} is not a number of watts, e.g. 350W.") from None
