from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetsieve_airflow.deployment.options import ExportOptions, dns_names, label_value
from fleetsieve_airflow.errors import DeploymentError
from tests.deployment.plans import make_kind

SERVICE = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("image", "vllm/vllm-openai"),
        ("image", "vllm/vllm-openai:latest"),
        ("image", "registry:5000/vllm"),
        ("namespace", "Not A Name"),
        ("hf_token_secret", "hf_abcdefgh"),
        ("hf_token_secret", "name:"),
        ("model_volume", "claim"),
        ("model_volume", "claim:relative"),
    ],
)
def test_an_option_that_kubernetes_would_refuse_later_is_refused_now(field: str, value: str) -> None:
    with pytest.raises(DeploymentError, match=re.escape(repr(value))):
        ExportOptions(**{field: value})


def test_the_image_is_that_of_the_option_else_of_the_measured_version_else_a_tested_one() -> None:
    known, unknown = make_kind(config={"engine_version": "0.31.1"}), make_kind()
    assert ExportOptions().image_of(known) == ("vllm/vllm-openai", "v0.31.1")
    built = make_kind(config={"engine_version": "v0.31.1+cu128"})
    assert ExportOptions().image_of(built) == ("vllm/vllm-openai", "v0.31.1")
    assert ExportOptions().image_of(unknown) == ("vllm/vllm-openai", "v0.32.0")
    assert ExportOptions(image="registry:5000/vllm:v1").image_of(known) == ("registry:5000/vllm", "v1")


@given(st.lists(st.text(max_size=90), unique=True, max_size=8), st.integers(12, 63))
def test_different_texts_get_different_names_that_kubernetes_takes(texts: list[str], length: int) -> None:
    names = dns_names(texts, length=length)
    assert len(set(names)) == len(texts)
    assert all(SERVICE.fullmatch(name) and len(name) <= length for name in names)


def test_a_name_that_loses_nothing_stays_readable() -> None:
    assert dns_names(["fleet chat TP4", "fleet code TP4"]) == ("fleet-chat-tp4", "fleet-code-tp4")
    first, second = dns_names(["chat TP4", "chat tp4"])
    assert first.startswith("chat-tp4-")
    assert second.startswith("chat-tp4-")


@given(st.text(max_size=120))
def test_every_text_becomes_a_label(text: str) -> None:
    value = label_value(text)
    assert LABEL.fullmatch(value)
    assert len(value) <= 63
