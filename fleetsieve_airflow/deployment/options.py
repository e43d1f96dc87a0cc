"""What a deployment says beyond the plan: image, namespace, where weights and tokens are. Never a secret."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from fleetsieve_airflow.deployment.plan import FleetPlan, ReplicaKind
from fleetsieve_airflow.errors import DeploymentError

IMAGE = "vllm/vllm-openai"
#: The version where a fleet file names none: the one that these command lines are tested with.
DEFAULT_VERSION = "0.32.0"
PORT = 8000
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_KEY = re.compile(r"[A-Za-z0-9._-]{1,253}")
_LABEL_MAX = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """Options of the exported files.

    :param image: ``repository:tag`` of every server; empty: the official image of the engine version.
    :param namespace: Kubernetes namespace; empty: left to ``kubectl``.
    :param hf_token_secret: ``NAME:KEY`` of an existing Secret that holds the Hugging Face token.
    :param model_volume: ``CLAIM:/path`` of a volume with the weights, for models whose source is a path.
    """

    image: str = ""
    namespace: str = ""
    hf_token_secret: str = ""
    model_volume: str = ""

    def __post_init__(self) -> None:
        repository, colon, tag = self.image.rpartition(":")
        if self.image and not (colon and repository and tag and "/" not in tag and tag != "latest"):
            raise DeploymentError(
                f"image {self.image!r} is not pinned.",
                hint=f"Give repository:tag, e.g. {IMAGE}:v{DEFAULT_VERSION}.",
            )
        if self.namespace and not _NAME.fullmatch(self.namespace):
            raise DeploymentError(f"namespace {self.namespace!r} is no Kubernetes name.")
        name, colon, key = self.hf_token_secret.partition(":")
        if self.hf_token_secret and not (_NAME.fullmatch(name) and _KEY.fullmatch(key)):
            raise DeploymentError(
                f"hf-token-secret {self.hf_token_secret!r} must be NAME:KEY of an existing Secret."
            )
        claim, colon, path = self.model_volume.partition(":")
        if self.model_volume and not (_NAME.fullmatch(claim) and path.startswith("/")):
            raise DeploymentError(
                f"model-volume {self.model_volume!r} must be CLAIM:/path, e.g. models:/models."
            )

    @property
    def secret(self) -> tuple[str, str] | None:
        """Name and key of the token's Secret."""
        name, _, key = self.hf_token_secret.partition(":")
        return (name, key) if name else None

    @property
    def volume(self) -> tuple[str, str] | None:
        """Claim and mount path of the weights."""
        claim, _, path = self.model_volume.partition(":")
        return (claim, path.rstrip("/") or "/") if claim else None

    def image_of(self, kind: ReplicaKind) -> tuple[str, str]:
        """Return repository and tag of a replica's image."""
        if self.image:
            repository, _, tag = self.image.rpartition(":")
            return repository, tag
        # A tag cannot hold the part of a version that says how it was built, as in 0.32.0+cu128
        version = kind.config.engine_version.partition("+")[0].removeprefix("v")
        return IMAGE, f"v{version or DEFAULT_VERSION}"


def require_deployable(plan: FleetPlan, options: ExportOptions) -> None:
    """Refuse what a Kubernetes Deployment of single pods cannot hold.

    :raises DeploymentError: a replica of several nodes, another engine, or weights no volume brings.
    """
    for kind in plan.kinds:
        require_vllm(kind)
        if kind.spans_nodes:
            raise DeploymentError(
                f"{kind.label}: a replica of {kind.config.gpus} GPUs spans nodes of {kind.gpus_per_node}; a "
                "Deployment's pod is on one node.",
                hint="Export commands, and start them on a Ray cluster or a LeaderWorkerSet.",
            )
        source = kind.model.source
        mounted = options.volume[1].rstrip("/") + "/" if options.volume else ""
        if source.startswith(("/", ".", "~")) and not (mounted and source.startswith(mounted)):
            raise DeploymentError(
                f"{kind.label}: the model's source {source} is a path that no volume brings into the pod.",
                hint="Name its claim and where to mount it, e.g. --model-volume models:/models.",
            )


def require_vllm(kind: ReplicaKind) -> None:
    """Refuse a replica whose command line is not known here.

    :raises DeploymentError: another engine than vLLM, or engines that prefill and decode apart.
    """
    if kind.config.disaggregated:
        built = " and ".join(f"{part.phase} {part.words}" for part in kind.config.parts)
        raise DeploymentError(
            f"{kind.label}: a disaggregated replica ({built}) cannot be exported: which connector moves its "
            "cache between the engines is not part of the plan.",
            hint="Use --format json, and start both phases with your connector and router.",
        )
    if kind.config.engine != "vllm":
        raise DeploymentError(
            f"{kind.label}: engine {kind.config.engine!r} cannot be exported; known: vllm.",
            hint="Use --format json.",
        )


def dns_names(texts: Sequence[str], *, length: int = _LABEL_MAX) -> tuple[str, ...]:
    """Return a name for each text that Kubernetes takes for a Service: different texts, different names.

    Letters, digits and dashes, a letter first, at most ``length``; where that loses something, the end is a
    digest of the text.
    """
    plain = [_slug(text) for text in texts]
    return tuple(
        name
        if len(name) <= length and plain.count(name) == 1
        else f"{name[: length - 9].rstrip('-')}-{_digest(text)}"
        for text, name in zip(texts, plain, strict=True)
    )


def label_value(text: str) -> str:
    """Return a text as the value of a label; what it loses by that is in the annotations."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:_LABEL_MAX].strip("._-")


def one_line(text: str) -> str:
    """Return a text that cannot end a comment."""
    return " ".join(text.split())


def _slug(text: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"
    return slug if slug[0].isalpha() else f"x-{slug}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
