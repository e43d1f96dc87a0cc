"""``fleetsieve export`` and ``fleetsieve diff`` as a person types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from fleetsieve_airflow.cli import main
from tests.deployment.plans import paper_certificate


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps(paper_certificate()))
    return path


def edited(path: Path, **fields: object) -> str:
    path.write_text(json.dumps({**paper_certificate(), **fields}))
    return str(path)


def test_commands_are_printed_by_default(certificate: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(certificate)]) == 0
    assert capsys.readouterr().out.count("\nvllm serve ") == 2


@pytest.mark.parametrize("form", ["commands", "kubernetes", "production-stack", "json"])
def test_a_form_is_written_to_a_folder(
    form: str, certificate: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["export", str(certificate), "--format", form, "--out", str(out)]) == 0
    (written,) = out.iterdir()
    assert capsys.readouterr().out == f"{written}\n"
    assert "chat" in written.read_text()


def test_options_reach_the_manifests(certificate: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--image", "r/vllm:v1", "--namespace", "llm", "--hf-token-secret", "hf:token"]
    assert main(["export", str(certificate), "--format", "kubernetes", *options]) == 0
    deployment = next(yaml.safe_load_all(capsys.readouterr().out))
    assert deployment["metadata"]["namespace"] == "llm"
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "r/vllm:v1"


def test_a_plan_that_is_not_certified_is_refused_unless_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = edited(tmp_path / "c.json", state="undetermined")
    assert main(["export", path]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "The plan is undetermined: no certificate stands behind it." in printed.err
    assert main(["export", path, "--allow-uncertified"]) == 0
    printed = capsys.readouterr()
    assert "# NOT CERTIFIED" in printed.out
    assert "NOT CERTIFIED" in printed.err


def test_a_certificate_that_was_edited_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = paper_certificate()
    allocations = [{**row, "replicas": 1} for row in document["conservative"]["allocations"]]
    path = edited(tmp_path / "c.json", conservative={**document["conservative"], "allocations": allocations})
    assert main(["export", path]) == 2
    assert "The certificate does not hold: conservative" in capsys.readouterr().err


def test_a_file_that_cannot_be_read_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(tmp_path / "none.json")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_bad_input(
    certificate: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(certificate), "--out", str(certificate)]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_two_certificates_are_compared_in_words(
    certificate: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(certificate), "--format", "json", "--out", str(tmp_path)]) == 0
    plan = tmp_path / "plan.json"
    document = json.loads(plan.read_text())
    chat = document["kinds"][0]
    chat.update(
        replicas=1, capacity_rps=11.27, config={**chat["config"], "label": "TP8", "tensor_parallel": 8}
    )
    plan.write_text(json.dumps(document))
    capsys.readouterr()
    assert main(["diff", str(plan), str(certificate)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "chat: 1 x TP8 -> 2 x TP4, frees 0 GPUs, +1.93 req/s at 1.3x"
    assert lines[-1].startswith("fleet: 16 -> 16 GPUs; ")
