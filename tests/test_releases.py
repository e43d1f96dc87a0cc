from __future__ import annotations

import json

import pytest

from fleetsieve_airflow.releases import (
    Release,
    Seen,
    asset_names,
    campaign_id_of,
    read_release,
    revision_of,
    version_of,
    versions_in_force,
)


def release(model: str = "chat", version: str = "7", **fields: float) -> Release:
    return Release(model=model, version=version, alias="production", **fields)


class TestSeen:
    """Which aliases have moved since they were seen last."""

    def moved(self, seen: Seen, found: dict[str, str], *, first: bool = False) -> tuple[str, ...]:
        return seen.moved(found, fire_on_first_sight=first)

    def test_what_is_there_at_the_first_look_is_no_release_unless_asked_for(self) -> None:
        found = {"chat": "7", "code": "2"}
        assert self.moved(Seen(), found) == ()
        assert self.moved(Seen(), found, first=True) == ("chat", "code")

    def test_another_version_is_a_release_and_the_same_is_not(self) -> None:
        seen = Seen().after(["*"], {"chat": "7", "code": "2"})
        assert self.moved(seen, {"chat": "8", "code": "2"}) == ("chat",)
        assert self.moved(seen, {"chat": "6"}) == ("chat",)
        assert self.moved(seen, {}) == ()

    def test_an_alias_that_appears_where_there_was_none_is_a_release(self) -> None:
        seen = Seen().after(["chat", "code-*"], {})
        assert self.moved(seen, {"chat": "1", "code-31b": "1"}) == ("chat", "code-31b")

    def test_models_that_are_watched_from_now_on_are_seen_for_the_first_time(self) -> None:
        seen = Seen().after(["chat"], {"chat": "7"})
        assert self.moved(seen, {"chat": "7", "code": "2"}) == ()
        assert self.moved(seen, {"chat": "7", "code": "2"}, first=True) == ("code",)

    def test_an_alias_that_was_deleted_and_set_again_fires_only_for_another_version(self) -> None:
        seen = Seen().after(["*"], {"chat": "7"}).after(["*"], {})
        assert self.moved(seen, {"chat": "7"}) == ()
        assert self.moved(seen, {"chat": "8"}) == ("chat",)

    def test_what_was_seen_survives_being_stored(self) -> None:
        seen = Seen().after(["chat-*", "*"], {"chat": "7"})
        assert Seen.from_json(json.loads(json.dumps(seen.to_json()))) == seen
        assert Seen.from_json(None) == Seen()


class TestEvents:
    """What the events of the asset hold."""

    def test_an_event_of_the_watcher_and_one_of_the_webhook_tell_the_same(self) -> None:
        told = Release(
            model="chat", version="7", alias="production", previous_version="6", server="https://m", at=5.0
        )
        assert read_release({"from_trigger": True, "payload": told.as_event()}) == told
        assert read_release({**told.as_event(), "delivery_id": "d1"}) == told

    @pytest.mark.parametrize(
        "extra",
        [
            None,
            {},
            [],
            {"payload": "x"},
            {"model": "chat", "alias": "production"},
            {"model": "", "version": "7", "alias": "production"},
            {"model": "chat", "version": "{{ var.value.secret }}", "alias": "production"},
            {"model": "chat", "version": "-1", "alias": "production"},
        ],
    )
    def test_an_event_that_tells_of_no_release_is_none(self, extra: object) -> None:
        assert read_release(extra) is None

    def test_the_version_in_force_is_the_one_released_last_in_whatever_order_it_was_told(self) -> None:
        told = [release(version="8", at=20.0), release("code", "2", at=1.0), release(version="7", at=10.0)]
        assert versions_in_force(told) == {"chat": "8", "code": "2"}
        assert versions_in_force(reversed(told)) == {"chat": "8", "code": "2"}

    def test_each_alias_of_each_server_has_an_asset_of_its_own(self) -> None:
        names = {asset_names(*place) for place in (("a", "b_c"), ("a_b", "c"), ("a/b", "c"), ("a", "b/c"))}
        assert len({uri for _, uri in names}) == 4
        assert asset_names("mlflow_default", "production") == (
            "fleetsieve_release_mlflow_default_production",
            "fleetsieve://release/mlflow_default/production",
        )


class TestCampaigns:
    """The campaign that answers a release."""

    def test_its_id_follows_from_the_fleet_and_the_versions_alone(self) -> None:
        assert campaign_id_of("eu/a.yaml", {"code": "2", "chat": "7"}) == campaign_id_of(
            "eu/a.yaml", {"chat": "7", "code": "2"}
        )
        assert campaign_id_of("a.yaml", {"code": "2", "chat": "7"}) == "release-a-chat-v7-code-v2"

    def test_names_that_do_not_fit_into_a_run_id_stay_different(self) -> None:
        ids = [
            campaign_id_of(file, {model: "7"})
            for file, model in (
                ("a.yaml", "chat 31b"),
                ("a.yaml", "chat-31b"),
                ("eu/a.yaml", "chat"),
                ("eu-a.yaml", "chat"),
                ("a.yaml", "x" * 300),
                ("a.yaml", "x" * 301),
            )
        ]
        assert len(set(ids)) == len(ids)
        assert all(len(name) < 200 and not set(name) & set(" /") for name in ids)

    def test_a_version_of_the_registry_is_a_revision_and_back(self) -> None:
        assert version_of(revision_of("7")) == "7"
        assert [version_of(text) for text in ("fp8-2026-08", "v", "v7b", "7", "")] == [None] * 5
