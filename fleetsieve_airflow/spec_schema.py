"""The shape of a fleet file: pydantic models, one per section, strict and closed.

Every field's description is the remedy that an error about it ends with, so it says what to write, with its
unit and an example. What needs more than one section (unknown names, what fits where) is in :mod:`.spec`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from fleetsieve_airflow.records import (
    LATENCY_METRICS,
    LOAD_KINDS,
    ROUNDS_MAX,
    LoadKind,
    Objective,
    StopRule,
)
from fleetsieve_airflow.spec_values import (
    Age,
    Concurrency,
    Count,
    Factors,
    Ladder,
    Name,
    Names,
    NotNegative,
    Options,
    Positive,
    Share,
    Sources,
    Spread,
    Text,
    refuse,
)


class Section(BaseModel):
    """A mapping of the fleet file: no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class PoolSection(Section):
    """GPUs of one kind."""

    gpu: Text = Field(description="Give the GPU as nvidia-smi names it, e.g. NVIDIA H100 80GB HBM3.")
    gpus: Count = Field(description="Give the number of GPUs that a plan may use, e.g. 16.")
    gpus_per_node: Count = Field(description="Give the number of GPUs of one node, e.g. 8.")
    spare_nodes: int = Field(
        default=0, ge=0, description="Give the number of whole nodes to keep free, e.g. 0."
    )
    gpu_memory_gib: Positive | None = Field(
        default=None, description="Give the memory of one GPU in GiB, e.g. 80."
    )
    price_per_gpu_hour: NotNegative | None = Field(default=None, description="Give a price, e.g. 2.5.")
    driver: str = Field(default="", description="Give the driver's version in quotes, e.g. '570.86'.")

    @model_validator(mode="after")
    def _leaves_gpus(self) -> PoolSection:
        if self.spare_nodes * self.gpus_per_node >= self.gpus:
            raise refuse(
                f"must leave GPUs to plan with: {self.spare_nodes} spare_nodes of {self.gpus_per_node} GPUs "
                f"keep all {self.gpus} free"
            )
        return self


class ModelSection(Section):
    """A model at one revision, with optional facts that exclude engine configs which cannot run."""

    revision: Text = Field(
        description="Give the version that is served, in quotes, e.g. a commit or '2026-11-01'."
    )
    source: str = Field(
        default="", description="Give what vLLM loads from: a path, perhaps with {revision}, or a repository."
    )
    registered_model: Text | None = Field(
        default=None, description="Give the model's name in MLflow's model registry."
    )
    num_attention_heads: Count | None = Field(
        default=None, description="Copy it from the model's config.json."
    )
    num_key_value_heads: Count | None = Field(
        default=None, description="Copy it from the model's config.json."
    )
    weights_gib: Positive | None = Field(
        default=None, description="Give the size of the weights in GiB, e.g. 31."
    )
    config_json: Text | None = Field(
        default=None,
        description="Give the path of the model's config.json; its head counts are then read from it.",
    )


class EngineGroupSection(Section):
    """The engines of one phase of a disaggregated replica."""

    pool: str = Field(description="Name one of the pools.")
    engines: Count = Field(default=1, description="Give the number of engines of this phase, e.g. 2.")
    tensor_parallel: Count = Field(default=1, description="Give the tensor-parallel degree, e.g. 4.")
    pipeline_parallel: Count = Field(default=1, description="Give the pipeline-parallel degree, e.g. 1.")
    data_parallel: Count = Field(default=1, description="Give the data-parallel degree, e.g. 1.")
    expert_parallel: bool = Field(default=False, description="Write true or false.")
    engine_args: Options = Field(
        default={}, description="Give arguments of these engines alone, e.g. {max-num-seqs: 512}."
    )


class EngineConfigSection(Section):
    """How one replica is built: in one pool, or as groups of engines for prefill and for decode."""

    pool: str | None = Field(
        default=None,
        description="Name one of the pools; not beside prefill and decode, which name their own.",
    )
    tensor_parallel: Count = Field(default=1, description="Give the tensor-parallel degree, e.g. 4.")
    pipeline_parallel: Count = Field(default=1, description="Give the pipeline-parallel degree, e.g. 1.")
    data_parallel: Count = Field(default=1, description="Give the data-parallel degree, e.g. 1.")
    expert_parallel: bool = Field(default=False, description="Write true or false.")
    multi_node: bool = Field(default=False, description="Write true to let a replica span whole nodes.")
    engine: Text = Field(default="vllm", description="Name the engine, e.g. vllm.")
    engine_version: str = Field(default="", description="Give the version in quotes, e.g. '0.11.2'.")
    engine_args: Options = Field(
        default={}, description="Give arguments as a mapping, e.g. {max-num-seqs: 256}."
    )
    prefill: EngineGroupSection | None = Field(
        default=None, description="Describe the engines that prefill, e.g. {pool: h100, tensor_parallel: 2}."
    )
    decode: EngineGroupSection | None = Field(
        default=None, description="Describe the engines that decode, e.g. {pool: a100, tensor_parallel: 8}."
    )

    @model_validator(mode="after")
    def _is_built_in_one_way(self) -> EngineConfigSection:
        groups = self.prefill is not None, self.decode is not None
        if not any(groups) and self.pool is None:
            raise refuse("must name a pool, or describe prefill and decode")
        if any(groups) and not all(groups):
            raise refuse("must describe both prefill and decode, or neither")
        own = {"pool", "tensor_parallel", "pipeline_parallel", "data_parallel", "expert_parallel"}
        if all(groups) and (given := sorted(own & self.model_fields_set)):
            raise refuse(f"must give {', '.join(given)} for prefill and for decode, not beside them")
        return self


class SloSection(Section):
    """What a workload's requests must get."""

    success_rate: Share | None = Field(default=None, description="Give a share, e.g. 0.99.")
    ttft_p50_s: Positive | None = Field(default=None, description="Give a limit in seconds.")
    ttft_p90_s: Positive | None = Field(default=None, description="Give a limit in seconds.")
    ttft_p95_s: Positive | None = Field(default=None, description="Give a limit in seconds.")
    ttft_p99_s: Positive | None = Field(default=None, description="Give a limit in seconds.")
    tpot_p50_s: Positive | None = Field(default=None, description="Give a limit in seconds.")
    tpot_p90_s: Positive | None = Field(default=None, description="Give a limit in seconds.")
    tpot_p95_s: Positive | None = Field(default=None, description="Give a limit in seconds.")
    tpot_p99_s: Positive | None = Field(default=None, description="Give a limit in seconds.")
    e2e_p50_s: Positive | None = Field(default=None, description="Give a limit in seconds.")
    e2e_p90_s: Positive | None = Field(default=None, description="Give a limit in seconds.")
    e2e_p95_s: Positive | None = Field(default=None, description="Give a limit in seconds.")
    e2e_p99_s: Positive | None = Field(default=None, description="Give a limit in seconds.")

    @model_validator(mode="after")
    def _limits_something(self) -> SloSection:
        if not self.model_dump(exclude_none=True):
            raise refuse(
                "must hold at least one limit: success_rate or a percentile such as ttft_p99_s "
                f"({', '.join(LATENCY_METRICS)} at p50, p90, p95, p99)"
            )
        return self


class TraceSection(Section):
    """The requests a workload is measured with."""

    name: Name | None = Field(default=None, description="Name the trace; by default the workload's name.")
    path: str = Field(default="", description="Give the path of the trace file.")
    format: str = Field(default="", description="Name the format of the file, e.g. mooncake.")
    digest: str = Field(
        default="", description="Give the SHA-256 of the file; it is taken from a readable path."
    )
    isl_mean_tokens: Positive | None = Field(
        default=None, description="Give the mean input length, e.g. 1155."
    )
    osl_mean_tokens: Positive | None = Field(
        default=None, description="Give the mean output length, e.g. 211."
    )


class LoadsSection(Section):
    """The loads at which one replica may be measured: a list, or ``auto`` between two ends."""

    offered_load_rps: Ladder | None = Field(
        default=None, description="Give request rates, e.g. [2, 4, 8], or auto with from and to."
    )
    concurrency: Concurrency | None = Field(
        default=None, description="Give requests in flight, e.g. [8, 16, 32], or auto with from and to."
    )
    from_: Positive | None = Field(
        default=None, alias="from", description="Give the lowest load of an auto ladder."
    )
    to: Positive | None = Field(default=None, description="Give the highest load of an auto ladder.")
    resolution: Annotated[float, Field(ge=0.001, le=10, allow_inf_nan=False)] | None = Field(
        default=None, description="Give the relative step of an auto ladder, e.g. 0.05 for steps of 5 %."
    )

    @model_validator(mode="after")
    def _says_one_ladder(self) -> LoadsSection:
        if (self.offered_load_rps is None) == (self.concurrency is None):
            raise refuse(f"must hold exactly one of {' and '.join(LOAD_KINDS)}")
        if self.loads == "auto":
            if self.from_ is None or self.to is None or self.from_ >= self.to:
                raise refuse("must hold 'from' and 'to' with from < to when the loads are auto")
            if self.kind == "concurrency" and (self.from_ % 1 or self.to % 1):
                raise refuse("must hold 'from' and 'to' as whole numbers of requests in flight")
        elif (self.from_, self.to, self.resolution) != (None, None, None):
            raise refuse("may hold from, to and resolution only when the loads are auto")
        return self

    @property
    def kind(self) -> LoadKind:
        """Which load is listed."""
        return "concurrency" if self.offered_load_rps is None else "offered_load_rps"

    @property
    def loads(self) -> list[float] | Literal["auto"]:
        """The listed loads, or ``auto``."""
        return self.offered_load_rps or self.concurrency or []


class WorkloadSection(Section):
    """Requests for one model with one SLO, and the engine configs that may serve them."""

    model: str = Field(description="Name one of the models.")
    demand_rps: Positive = Field(
        description="Give the rate that the fleet must serve, in requests per second."
    )
    slo: SloSection = Field(description="Give the limits, e.g. {success_rate: 0.99, ttft_p99_s: 2.0}.")
    engine_configs: Names = Field(description="List engine configs by label, e.g. [TP2, TP4].")
    trace: TraceSection = Field(
        default=TraceSection(), description="Describe the trace, e.g. {name: chat-w47}."
    )
    loads: LoadsSection | None = Field(
        default=None,
        description="Give loads, e.g. {offered_load_rps: [2, 4, 8]}; replay takes the grid's by default.",
    )
    loads_by_config: dict[Name, LoadsSection] = Field(
        default={}, description="Give other loads for some configs, e.g. {TP2: {offered_load_rps: [1, 2]}}."
    )
    min_replicas: int = Field(default=0, ge=0, description="Give the fewest replicas, e.g. 0.")
    max_replicas: Count | None = Field(default=None, description="Give the most replicas, e.g. 4.")

    @model_validator(mode="after")
    def _leaves_a_choice(self) -> WorkloadSection:
        if self.max_replicas is not None and self.max_replicas < self.min_replicas:
            raise refuse(f"must have min_replicas {self.min_replicas} <= max_replicas {self.max_replicas}")
        return self


class AssumptionsSection(Section):
    """Structural assumptions that may be switched on."""

    interior_peak: bool = Field(default=False, description="Write true or false.")


class DecisionSection(Section):
    """What counts as settled."""

    objective: Objective = Field(default="max_min_fulfilment", description="Name the objective.")
    required_fulfilment: Share = Field(
        default=1.0, description="Give the share of demand to serve, e.g. 1.0."
    )
    tolerance: NotNegative = Field(
        default=0.01,
        description="Give a fulfilment, e.g. 0.01 (fewest_gpus: GPUs, lowest_cost: money per hour).",
    )
    stop_on: StopRule = Field(default="regret", description="Say what must fall to the tolerance.")
    confidence: Annotated[float, Field(gt=0.5, lt=1, allow_inf_nan=False)] | None = Field(
        default=None, description="Give the confidence of a certificate, e.g. 0.95, or leave it out."
    )
    run_to_run_cv: Spread = Field(
        default=0.0, description="Give the relative spread between runs, e.g. 0.02."
    )
    closed_loop_slack: Spread = Field(
        default=0.1,
        description="Give the relative spread of served rates between closed-loop runs, e.g. 0.1.",
    )
    certify_on: Sources = Field(
        default=["measured", "monotone", "closed_loop"],
        description="List sources, e.g. [measured, monotone].",
    )
    assumptions: AssumptionsSection = Field(
        default=AssumptionsSection(), description="E.g. {interior_peak: true}."
    )
    demand_scenarios: Factors = Field(
        default=[1.0], description="List factors on the demand, e.g. [0.7, 1.0, 1.3]."
    )
    cost_per_hour_max: Positive | None = Field(
        default=None, description="Give the most a plan may cost per hour."
    )


class MeasurementSection(Section):
    """How points are measured."""

    backend: str = Field(default="replay", description="Name a backend of this installation.")
    grid: Text | None = Field(
        default=None, description="Give the path of a CSV grid, or package:paper_grid.csv."
    )
    duration_s: Positive = Field(
        default=300.0, description="Give the length of one window in seconds, e.g. 300."
    )
    startup_s: NotNegative = Field(
        default=0.0, description="Give the seconds a server takes to start, e.g. 180."
    )
    profiling_gpus: Count | None = Field(
        default=None, description="Give the GPUs free for measuring, e.g. 16."
    )
    repeats: Count = Field(default=3, description="Give how often one load may be measured, e.g. 3.")
    failed_attempts: Count = Field(default=3, description="Give after how many failures a point is given up.")
    seed: int = Field(default=0, ge=0, le=2**31, description="Give a whole number, e.g. 0.")
    reuse_max_age: Age | None = Field(
        default=None, description="Write for example 30d, or leave it out to reuse without limit."
    )
    options: Options = Field(default={}, description="Give the backend's own options as a mapping.")


class SimulatorSection(Section):
    """Where simulated capacities come from."""

    tables: Literal["roofline", "aiconfigurator"] = Field(
        default="roofline", description="Write roofline or aiconfigurator."
    )


def _switched(value: Any) -> Any:
    """Let true stand for a section with nothing but defaults, and false for none."""
    return {True: {}, False: None}[value] if isinstance(value, bool) else value


class PriorSection(Section):
    """What may steer the first measurements."""

    earlier_release: bool = Field(
        default=True, description="Write true to start from the earlier release's campaign, else false."
    )
    simulator: Annotated[SimulatorSection | None, BeforeValidator(_switched)] = Field(
        default=None, description="Write false, true, or a mapping, e.g. {tables: roofline}."
    )
    widening: Spread = Field(
        default=0.15, description="Give how far a release may move a capacity, e.g. 0.15 for 15 %."
    )


class BudgetSection(Section):
    """What a campaign may spend at most."""

    gpu_seconds: Positive | None = Field(default=None, description="Give GPU-seconds, e.g. 36000.")
    rounds: Count | None = Field(default=ROUNDS_MAX, description="Give a number of rounds, e.g. 20.")
    points: Count | None = Field(default=None, description="Give a number of points, e.g. 50.")


class FleetFile(Section):
    """A whole fleet file."""

    fleet: Name = Field(description="Name the fleet, e.g. chat-and-code.")
    pools: Annotated[dict[Name, PoolSection], Field(min_length=1)] = Field(
        description="Give at least one pool."
    )
    models: Annotated[dict[Name, ModelSection], Field(min_length=1)] = Field(
        description="Give at least one model."
    )
    engine_configs: Annotated[dict[Name, EngineConfigSection], Field(min_length=1)] = Field(
        description="Give at least one engine config."
    )
    workloads: Annotated[dict[Name, WorkloadSection], Field(min_length=1)] = Field(
        description="Give at least one workload."
    )
    decision: DecisionSection = Field(default=DecisionSection(), description="Give a mapping.")
    measurement: MeasurementSection = Field(default=MeasurementSection(), description="Give a mapping.")
    prior: PriorSection = Field(default=PriorSection(), description="Give a mapping.")
    budget: BudgetSection = Field(default=BudgetSection(), description="Give a mapping.")
