"""The ``vllm serve`` command of an engine config: one text for measuring a replica and for deploying it."""

from __future__ import annotations

import re

from fleetsieve_airflow.errors import SpecError
from fleetsieve_airflow.records import EngineConfig, Model

_COMMIT = re.compile(r"[0-9a-f]{40}")
_ENGINE_ARG = re.compile(r"[a-z0-9][a-z0-9-]*")
#: Arguments that are set here; a spec that sets them too would measure something else than it says.
_OURS = frozenset(
    {
        "host",
        "port",
        "served-model-name",
        "tensor-parallel-size",
        "pipeline-parallel-size",
        "data-parallel-size",
    }
)


def engine_command(
    program: str, model: Model, config: EngineConfig, *, host: str = "127.0.0.1", port: str = "@PORT@"
) -> tuple[str, ...]:
    """Return the ``vllm serve`` command of an engine config as an argument list.

    Engine arguments ``true`` and ``false`` become ``--name`` and ``--no-name``; all others ``--name=value``,
    so that no value can be taken for an option.

    :param port: by default a mark that is filled in on the node.
    :raises SpecError: an argument that is no option name, that is set here, or that holds a secret; engines
        that prefill and decode apart.
    """
    if config.disaggregated:
        raise SpecError(
            f"Engine config {config.label}: real servers are started one engine a replica; engines of their "
            "own for prefill and decode cannot be started yet.",
            hint="Measure it with the simulate backend, or replay a grid of your own measurements.",
        )
    if (model.source or model.name).startswith("-"):
        raise SpecError(f"Model {model.name!r}: source {model.source!r} must not start with a dash.")
    command = [program, "serve", model.source or model.name, f"--served-model-name={model.name}"]
    command += [f"--host={host}", f"--port={port}", f"--tensor-parallel-size={config.tensor_parallel}"]
    if config.pipeline_parallel > 1:
        command.append(f"--pipeline-parallel-size={config.pipeline_parallel}")
    if config.data_parallel > 1:
        command.append(f"--data-parallel-size={config.data_parallel}")
    if config.expert_parallel:
        command.append("--enable-expert-parallel")
    if names_a_commit(model) and "revision" not in {option_name(name) for name, _ in config.engine_args}:
        command.append(f"--revision={model.revision}")
    return (*command, *engine_arguments(config))


def names_a_commit(model: Model) -> bool:
    """Say whether vLLM can be held to the model's revision: a commit of a repository."""
    source = model.source or model.name
    return bool(_COMMIT.fullmatch(model.revision)) and source[0] not in "/.~" and "://" not in source


def engine_arguments(config: EngineConfig) -> tuple[str, ...]:
    """Return a config's own arguments as options.

    :raises SpecError: as :func:`engine_command`.
    """
    options = []
    for name, value in config.engine_args:
        option = option_name(name)
        if not _ENGINE_ARG.fullmatch(option) or option in _OURS:
            raise SpecError(f"Engine config {config.label!r}: {name!r} cannot be an engine argument.")
        if option == "api-key":
            raise SpecError(
                f"Engine config {config.label!r}: api-key is a secret.", hint="Put VLLM_API_KEY in env_file."
            )
        if value.lower() in ("true", "false"):
            options.append(f"--{option}" if value.lower() == "true" else f"--no-{option}")
        else:
            options.append(f"--{option}={value}")
    return tuple(options)


def option_name(name: str) -> str:
    """Return an engine argument's name as the command line has it: ``max_num_seqs`` is ``max-num-seqs``."""
    return name.removeprefix("--").replace("_", "-")
