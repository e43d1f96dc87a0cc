"""MLflow's model registry: which version an alias names, and what is planned for a version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from fleetsieve_airflow.errors import TrackingError
from fleetsieve_airflow.hooks.mlflow_client import TrackingClient, http_status

if TYPE_CHECKING:
    from mlflow import MlflowClient

PAGE = 500
_NOT_FOUND = 404


class ModelRegistry:
    """The registry behind a client."""

    def __init__(self, client: TrackingClient) -> None:
        self._client = client

    def versions_with_alias(self, alias: str, patterns: Sequence[str]) -> dict[str, str]:
        """Return the version that an alias names, by model; models without the alias are left out.

        :param patterns: names of models, or patterns such as ``chat-*``.
        """
        found: dict[str, str] = {}
        for pattern in patterns:
            for model in self._models(pattern):
                if alias in model.aliases and fnmatchcase(model.name, pattern):
                    found[model.name] = str(model.aliases[alias])
        return found

    def tag_version(self, model: str, version: str, tags: Mapping[str, str], *, alias: str = "") -> bool:
        """Write tags, and an alias where one is given, to a version of a model.

        :return: whether the registry has that version.
        :raises TrackingError: the registry refused, or did not answer.
        """

        def write(client: MlflowClient) -> None:
            client.get_model_version(model, version)
            for name, text in tags.items():
                client.set_model_version_tag(model, version, name, text)
            if alias:
                client.set_registered_model_alias(model, alias, version)

        try:
            self._client.call(f"tag version {version} of model {model}", write)
        except TrackingError as error:
            cause = error.__cause__
            if isinstance(cause, Exception) and http_status(cause) == _NOT_FOUND:
                return False
            raise
        return True

    def _models(self, pattern: str) -> Iterator[Any]:
        """Yield at least the models that fit a pattern; the server leaves out most of the others."""
        start, wild, _ = pattern.partition("*")
        plain = "'" not in start and not set("?[") & set(pattern)
        query = f"name LIKE '{start}%'" if wild else f"name = '{pattern}'"
        token: str | None = None

        def search(client: MlflowClient) -> Any:
            return client.search_registered_models(
                query if plain else None, max_results=PAGE, page_token=token
            )

        while True:
            page = self._client.call("search its registered models", search)
            yield from page
            token = page.token
            if not token:
                return
