"""The facts of a model that decide what it costs to serve, read from the config.json it ships with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from fleetsieve_airflow.simulator.curves import PerfDataError

#: Bytes of one weight or cache entry, scales included.
BYTES = {
    "bfloat16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0,
    "int8_wo": 1.0,
    "nvfp4": 0.5625,
    "int4_wo": 0.53,
    "w4a16_mxfp4": 0.53125,
    "w4a8_mxfp4_mxfp8": 0.53125,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Number formats: of dense products, of the experts, of the KV cache."""

    gemm: str = "bfloat16"
    moe: str = "bfloat16"
    kv: str = "bfloat16"

    def __post_init__(self) -> None:
        for name, dtype in (("gemm", self.gemm), ("moe", self.moe), ("kv", self.kv)):
            if dtype not in BYTES:
                raise PerfDataError(f"Unknown number format {dtype!r} for {name}; known: {', '.join(BYTES)}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder-only transformer: grouped-query or latent (MLA) attention, dense or mixture-of-experts.

    :param sliding_layers: layers whose attention sees only ``window`` tokens.
    :param dense_layers: layers of a mixture-of-experts model that have a dense feed-forward block of
        ``inter``.
    :param shared_inter: width of the experts every token visits.
    :param latent: cached numbers per token and layer under MLA (rank + rotary part).
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inter: int
    vocab: int
    attention: Literal["gqa", "mla"] = "gqa"
    sliding_layers: int = 0
    window: int = 0
    experts: int = 0
    topk: int = 0
    moe_inter: int = 0
    shared_inter: int = 0
    dense_layers: int = 0
    latent: int = 0
    precision: Precision = Precision()

    @property
    def moe_layers(self) -> int:
        """Layers with experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def attention_params_per_layer(self) -> float:
        """Weights of the attention block of one layer."""
        if self.attention == "mla":
            rank, rope, nope = self.latent - 64, 64, 128
            query = 1536 * (self.hidden + self.heads * (nope + rope))
            return float(
                query
                + self.hidden * self.latent
                + rank * self.heads * 2 * nope
                + self.heads * nope * self.hidden
            )
        return float(self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads))

    @property
    def expert_params_per_layer(self) -> float:
        """Weights of all routed experts of one layer."""
        return 3.0 * self.hidden * self.moe_inter * self.experts

    @property
    def params(self) -> float:
        """All weights."""
        dense_ffn = 3.0 * self.hidden * self.inter * (self.layers - self.moe_layers)
        experts = self.moe_layers * (self.expert_params_per_layer + 3.0 * self.hidden * self.shared_inter)
        return (
            self.layers * self.attention_params_per_layer
            + dense_ffn
            + experts
            + 2.0 * self.vocab * self.hidden
        )

    def with_precision(self, precision: Precision) -> ModelShape:
        """Return the model served in other number formats."""
        return replace(self, precision=precision)

    def kv_bytes_per_token(self, tensor_parallel: int) -> float:
        """Return cache bytes of one more token of a long sequence on one rank; sliding layers add nothing."""
        size = BYTES[self.precision.kv]
        if self.attention == "mla":
            return self.layers * self.latent * size
        heads = -(-self.kv_heads // tensor_parallel)
        return (self.layers - self.sliding_layers) * 2.0 * heads * self.head_dim * size

    def kv_bytes_per_sequence(self, tensor_parallel: int) -> float:
        """Return cache bytes a sequence holds whatever its length: the windows of sliding layers."""
        heads = -(-self.kv_heads // tensor_parallel)
        return self.sliding_layers * self.window * 2.0 * heads * self.head_dim * BYTES[self.precision.kv]


def shape_from_config(name: str, config: Mapping[str, Any]) -> ModelShape:
    """Read a Hugging Face ``config.json``.

    :raises PerfDataError: the architecture is not a decoder-only transformer of a kind the engine model
        knows.
    """
    config = config.get("text_config", config)
    kind = str(config.get("model_type", ""))
    known = (
        "llama",
        "qwen2",
        "qwen3",
        "mistral",
        "qwen3_moe",
        "mixtral",
        "gpt_oss",
        "deepseek_v3",
        "kimi_k2",
        "minimax_m2",
    )
    if kind not in known:
        raise PerfDataError(
            f"The engine model does not know the architecture {kind!r} of {name}; known: {', '.join(known)}."
        )
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    layers = int(config["num_hidden_layers"])
    experts = int(
        config.get("n_routed_experts") or config.get("num_local_experts") or config.get("num_experts") or 0
    )
    moe_inter = int(config.get("moe_intermediate_size") or config["intermediate_size"]) if experts else 0
    sliding = (
        sum(layer == "sliding_attention" for layer in config.get("layer_types") or ())
        if kind == "gpt_oss"
        else 0
    )
    mla = kind in ("deepseek_v3", "kimi_k2")
    return ModelShape(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or config.get("v_head_dim") or hidden // heads),
        inter=int(config["intermediate_size"]),
        vocab=int(config["vocab_size"]),
        attention="mla" if mla else "gqa",
        sliding_layers=sliding,
        window=int(config.get("sliding_window") or 0) if sliding else 0,
        experts=experts,
        topk=int(config.get("num_experts_per_tok") or 0) if experts else 0,
        moe_inter=moe_inter,
        shared_inter=moe_inter * int(config.get("n_shared_experts") or 0),
        dense_layers=int(config.get("first_k_dense_replace") or 0) if experts else 0,
        latent=int(config["kv_lora_rank"]) + int(config["qk_rope_head_dim"]) if mla else 0,
    )


def _dense(
    name: str, layers: int, hidden: int, heads: int, kv_heads: int, inter: int, vocab: int
) -> ModelShape:
    return ModelShape(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=128,
        inter=inter,
        vocab=vocab,
    )


def _with_experts(base: ModelShape, experts: int, topk: int, moe_inter: int) -> ModelShape:
    return replace(base, experts=experts, topk=topk, moe_inter=moe_inter)


#: Models whose facts are built in, so that an example needs no file; the numbers are those of their
#: config.json.
KNOWN_MODELS: dict[str, ModelShape] = {
    shape.name: shape
    for shape in (
        _dense("llama-3.1-8b", 32, 4096, 32, 8, 14336, 128256),
        _dense("llama-3.1-70b", 80, 8192, 64, 8, 28672, 128256),
        _dense("llama-2-7b", 32, 4096, 32, 32, 11008, 32000),
        _dense("llama-2-13b", 40, 5120, 40, 40, 13824, 32000),
        _dense("qwen3-32b", 64, 5120, 64, 8, 25600, 151936),
        _with_experts(_dense("qwen3-235b-a22b", 94, 4096, 64, 4, 12288, 151936), 128, 8, 1536),
        _with_experts(_dense("mixtral-8x7b", 32, 4096, 32, 8, 14336, 32000), 8, 2, 14336),
        _with_experts(
            ModelShape(
                name="gpt-oss-120b",
                layers=36,
                hidden=2880,
                heads=64,
                kv_heads=8,
                head_dim=64,
                inter=2880,
                vocab=201088,
                sliding_layers=18,
                window=128,
                precision=Precision(moe="w4a16_mxfp4"),
            ),
            128,
            4,
            2880,
        ),
        ModelShape(
            name="deepseek-v3",
            layers=61,
            hidden=7168,
            heads=128,
            kv_heads=128,
            head_dim=128,
            inter=18432,
            vocab=129280,
            attention="mla",
            experts=256,
            topk=8,
            moe_inter=2048,
            shared_inter=2048,
            dense_layers=3,
            latent=576,
            precision=Precision(gemm="fp8_block", moe="fp8_block"),
        ),
    )
}


def model_named(name: str) -> ModelShape:
    """Return a built-in model.

    :raises PerfDataError: naming the models that are built in.
    """
    try:
        return KNOWN_MODELS[name.lower()]
    except KeyError:
        raise PerfDataError(
            f"No built-in model {name!r}; built in: {', '.join(sorted(KNOWN_MODELS))}.",
            hint="Give the path of its config.json instead.",
        ) from None
