"""The documentation is true: what comes from the code is current, links lead somewhere, commands work."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from fleetsieve_airflow.cli import main
from fleetsieve_airflow.spec import parse_spec
from tests.builders import REPOSITORY
from tests.deployment.plans import paper_certificate

DOCS = REPOSITORY / "docs"
PAGES = sorted([*DOCS.glob("*.md"), REPOSITORY / "README.md", REPOSITORY / "docker" / "README.md"])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
STALE = "run `make docs-reference` and commit what it writes"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(page: Path, language: str) -> list[str]:
    return [text for name, text in FENCE.findall(page.read_text(encoding="utf-8")) if name == language]


def commands(page: Path) -> list[str]:
    text = "\n".join(blocks(page, "bash")).replace("\\\n", " ")
    return [line.split("  #")[0].strip() for line in text.splitlines() if line.strip()]


def anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


class TestWhatComesFromTheCode:
    def test_the_reference_is_current(self, generate: ModuleType) -> None:
        assert (DOCS / "reference.md").read_text(encoding="utf-8") == generate.reference(), STALE

    def test_the_tables_of_the_fleet_file_are_current(self, generate: ModuleType) -> None:
        text = (DOCS / "fleet-file.md").read_text(encoding="utf-8")
        assert text == generate.fleet_file(text), STALE

    def test_every_key_of_a_fleet_file_has_an_example(self, generate: ModuleType) -> None:
        shown = generate.examples()
        assert [path for _, path, _, _ in generate.keys() if path not in shown] == []

    def test_the_examples_are_a_fleet_file_without_a_mistake(self, tmp_path: Path) -> None:
        (tmp_path / "rank-7b").mkdir()
        config = '{"num_attention_heads": 32, "num_key_value_heads": 8}'
        (tmp_path / "rank-7b" / "config.json").write_text(config)
        document = yaml.safe_load((DOCS / "every-key.yaml").read_text(encoding="utf-8"))
        # No such grid: loads are given, so it is only read when something is measured
        spec = parse_spec({**document, "measurement": {"backend": "local"}}, tmp_path)
        assert spec.model("rank-7b").num_key_value_heads == 8
        assert len(spec.candidates) == 3

    def test_the_reference_names_every_operator_and_the_hooks(self, generate: ModuleType) -> None:
        text = generate.reference()
        for path in (REPOSITORY / "fleetsieve_airflow" / "operators").glob("*.py"):
            for name in re.findall(r"^class (\w+Operator)\b", path.read_text(encoding="utf-8"), re.MULTILINE):
                assert f"### {name}\n" in text
        assert "### MlflowHook\n" in text
        assert "#### `find_campaign(fleet: str, campaign_id: str)`\n" in text
        assert text.count("```python\n") * 2 == len(re.findall(r"^```", text, re.MULTILINE))

    def test_options_of_real_servers_are_all_told(self) -> None:
        from dataclasses import fields

        from fleetsieve_airflow.serving.options import JobOptions

        text = (DOCS / "real-servers.md").read_text(encoding="utf-8")
        assert [field.name for field in fields(JobOptions) if f"`{field.name}`" not in text] == []


class TestPages:
    @pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
    def test_links_lead_somewhere(self, page: Path) -> None:
        text = FENCE.sub("", page.read_text(encoding="utf-8"))
        for target in re.findall(r"\]\(([^)]+)\)", text):
            if target.startswith("http"):
                continue
            path, _, place = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            assert file.exists(), target
            if place:
                titles = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
                assert place in {anchor(title) for title in titles}, target

    def test_the_index_names_every_page(self) -> None:
        text = (DOCS / "README.md").read_text(encoding="utf-8")
        for page in DOCS.glob("*.md"):
            assert page.name == "README.md" or f"({page.name})" in text, page.name

    @pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
    def test_python_and_yaml_can_be_read(self, page: Path) -> None:
        for text in blocks(page, "python"):
            compile(text, page.name, "exec")
        for text in blocks(page, "yaml"):
            assert yaml.safe_load(text)


class TestCommands:
    """Commands of ``fleetsieve`` are carried out; those of other programs are checked for being known."""

    @pytest.fixture
    def workplace(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A folder as a reader has it: the fleets, one of their own, and two certificates."""
        (tmp_path / "dags").symlink_to(REPOSITORY / "dags")
        fleet = REPOSITORY / "dags" / "fleets" / "chat_and_code_h100.yaml"
        (tmp_path / "my_fleet.yaml").write_text(fleet.read_text(encoding="utf-8"))
        for name in ("plan", "old", "new"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "certificate.json").write_text(json.dumps(paper_certificate()))
        monkeypatch.chdir(tmp_path)
        return tmp_path

    @pytest.mark.parametrize(
        "command",
        sorted(
            {
                line
                for page in PAGES
                for line in commands(page)
                if re.match(r"(\.venv/bin/)?fleetsieve (?!search|\S*simul)", line)
            }
        ),
    )
    def test_fleetsieve_does_what_the_page_says(
        self, command: str, workplace: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        arguments = shlex.split(command)
        assert main(arguments[1:]) == 0, capsys.readouterr().err

    def test_make_targets_exist(self) -> None:
        done = subprocess.run(["make", "help"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
        known = {line.split()[0] for line in done.stdout.splitlines() if line}
        used = {line.split()[1] for page in PAGES for line in commands(page) if re.match(r"make [a-z]", line)}
        assert used <= known

    def test_airflow_knows_its_commands(self) -> None:
        used = sorted({line for page in PAGES for line in commands(page) if line.startswith("airflow ")})
        assert len(used) >= 4
        code = (
            "import json, sys; from airflow.cli.cli_parser import get_parser; parser = get_parser()\n"
            "for words in json.loads(sys.argv[1]): parser.parse_args(words[1:])\n"
            "print('parsed')"
        )
        words = json.dumps([shlex.split(line) for line in used])
        done = subprocess.run(
            [sys.executable, "-c", code, words], capture_output=True, text=True, check=False
        )
        assert done.stdout.splitlines()[-1:] == ["parsed"], done.stderr
