from __future__ import annotations

import json

import pytest

from fleetsieve_airflow.deployment.files import FORMATS, deployment_files, load_json
from fleetsieve_airflow.deployment.plan import read_plan
from fleetsieve_airflow.errors import DeploymentError
from tests.deployment.plans import make_kind, make_plan, paper_plan


def test_every_form_of_a_plan_is_a_file() -> None:
    files = deployment_files(paper_plan())
    assert set(files) == {"commands.sh", "kubernetes.yaml", "values.yaml", "plan.json"}
    assert read_plan(json.loads(files["plan.json"])) == paper_plan()
    first = json.loads(files["plan.json"])["kinds"][0]
    assert first["command"][:2] == ["vllm", "serve"]
    assert first["image"] == "vllm/vllm-openai:v0.32.0"
    assert all("Not exported" not in text for text in files.values())


def test_a_form_that_a_plan_cannot_have_says_why() -> None:
    kind = make_kind(label="TP8", config={"pipeline_parallel": 2, "multi_node": True})
    files = deployment_files(make_plan(kind))
    assert files["kubernetes.yaml"].startswith("# Not exported. chat TP8: a replica of 16 GPUs spans nodes")
    assert files["commands.sh"].startswith("# Fleet ")


def test_another_engines_plan_is_json_all_the_same() -> None:
    files = deployment_files(make_plan(make_kind(config={"engine": "sglang"})))
    assert "command" not in json.loads(files["plan.json"])["kinds"][0]
    assert [name for name, text in files.items() if text.startswith("# Not exported.")] == [
        FORMATS[name][0] for name in ("commands", "kubernetes", "production-stack")
    ]


@pytest.mark.parametrize(
    ("text", "match"), [("{", "f.json is not JSON"), ("[]", "f.json is not a JSON object")]
)
def test_what_is_no_json_object_is_refused(text: str, match: str) -> None:
    with pytest.raises(DeploymentError, match=match):
        load_json(text, "f.json")
