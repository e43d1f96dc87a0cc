"""The command line: what it prints, what it writes, and the exit code of every end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fleetsieve_airflow.campaign import replay_campaign
from fleetsieve_airflow.cli import main
from fleetsieve_airflow.evidence import Decision, Evidence
from fleetsieve_airflow.serialization import from_document
from tests.builders import PAPER_FLEET, REPOSITORY, paper_spec

FLEET = str(PAPER_FLEET)
GRID = str(REPOSITORY / "fleetsieve_airflow" / "data" / "paper_grid.csv")


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    assert main(["plan", FLEET, "--out", str(folder)]) == 0
    return folder


class TestCheck:
    def test_a_good_fleet_is_summed_up(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["check", FLEET]) == 0
        assert capsys.readouterr().out == (
            "chat-and-code-h100: 2 workloads, 6 candidates, 24 points; "
            "measuring all of them takes 33,600 GPU-seconds.\n"
        )

    def test_a_candidate_that_cannot_run_is_told_with_its_reason(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "fleet.yaml"
        file.write_text(PAPER_FLEET.read_text().replace("num_attention_heads: 32", "num_attention_heads: 20"))
        assert main(["check", str(file)]) == 0
        assert "chat TP8 cannot run: Tensor-parallel degree 8 does not divide" in capsys.readouterr().out

    def test_a_bad_fleet_is_refused_line_by_line_without_a_traceback(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "fleet.yaml"
        text = PAPER_FLEET.read_text().replace("demand_rps: 12.0", "demand_rps: 0")
        file.write_text(text.replace("tolerance: 0.01", "tolerance: -1"))
        assert main(["check", str(file)]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        lines = printed.err.splitlines()
        assert lines[0] == f"fleetsieve check: {file}"
        assert [line.partition(" ")[0] for line in lines[1:]] == [
            "workloads.chat.demand_rps",
            "decision.tolerance",
        ]

    def test_a_grid_that_lacks_points_is_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "fleet.yaml"
        text = PAPER_FLEET.read_text()
        file.write_text(
            text.replace("    min_replicas: 0 ", "    loads: {offered_load_rps: [5]}\n    min_replicas: 0 ")
        )
        assert main(["check", str(file)]) == 2
        assert "lacks 3 points of the spec: chat TP2 at 5" in capsys.readouterr().err

    def test_a_nan_in_a_grid_is_refused(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        grid = tmp_path / "grid.csv"
        grid.write_text(Path(GRID).read_text().replace("46.4", "nan"))
        assert main(["check", FLEET, "--grid", str(grid)]) == 2
        assert "line 9, column e2e_p99_s: must be a finite number" in capsys.readouterr().err


class TestPlan:
    def test_the_verdict_the_plan_and_the_saving_go_to_stdout_and_progress_to_stderr(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["plan", FLEET]) == 0
        printed = capsys.readouterr()
        assert printed.out.startswith("Decided: chat 2 x TP4; code 2 x TP4 (16 of 16 GPUs).")
        assert "chat      12            2 x TP4   8     13.2        100.0%" in printed.out
        assert "GPU-seconds spent" in printed.out
        rounds = printed.err.splitlines()
        assert rounds[0].startswith("round 1: gap 1, regret 1, spent 0 GPU-seconds; measuring ")
        assert rounds[-1].endswith("certified feasible")

    def test_a_fleet_that_cannot_serve_its_demand_ends_infeasible(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["plan", FLEET, "--demand-scale", "2"]) == 3
        assert "workload" in capsys.readouterr().out

    def test_a_campaign_whose_budget_is_used_up_ends_undetermined(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "fleet.yaml"
        file.write_text(PAPER_FLEET.read_text().replace("rounds: 20", "rounds: 1"))
        assert main(["plan", str(file)]) == 4
        assert "undetermined" in capsys.readouterr().err

    def test_a_grid_on_the_command_line_starts_at_the_current_folder(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(REPOSITORY / "fleetsieve_airflow")
        assert main(["plan", FLEET, "--backend", "replay", "--grid", "data/paper_grid.csv"]) == 0
        assert "Decided: chat 2 x TP4" in capsys.readouterr().out

    def test_an_unknown_backend_is_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["plan", FLEET, "--backend", "guess"]) == 2
        assert "measurement.backend" in capsys.readouterr().err

    def test_a_demand_scale_that_is_no_factor_is_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["plan", FLEET, "--demand-scale", "nan"]) == 2
        assert "must be above 0, got nan. Give a factor" in capsys.readouterr().err

    def test_the_folder_holds_every_round_the_evidence_and_the_report(self, planned: Path) -> None:
        evidence = from_document(Evidence, json.loads((planned / "evidence.json").read_text()))
        files = sorted(planned.glob("rounds/*/decision.json"))
        rounds = [from_document(Decision, json.loads(file.read_text())) for file in files]
        assert rounds == replay_campaign(paper_spec(), evidence)
        assert [file.parent.name for file in files] == [f"{1 + i:02d}" for i in range(len(files))]
        certificate = json.loads((planned / "certificate.json").read_text())
        assert certificate["state"] == rounds[-1].state == "certified_feasible"
        report = (planned / "report.html").read_text()
        assert report.startswith("<!doctype html>") or report.startswith("<!DOCTYPE html>")
        assert certificate["certificate_sha256"][:12] in report

    def test_a_shorter_campaign_leaves_no_round_of_a_longer_one(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["plan", FLEET, "--demand-scale", "1.3", "--out", str(tmp_path)]) == 3
        before = len(list(tmp_path.glob("rounds/*/decision.json")))
        assert main(["plan", FLEET, "--demand-scale", "0.7", "--out", str(tmp_path)]) == 0
        capsys.readouterr()
        assert len(list(tmp_path.glob("rounds/*/decision.json"))) < before

    def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_measured(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "file").write_text("in the way")
        assert main(["plan", FLEET, "--out", str(tmp_path / "file")]) == 2
        printed = capsys.readouterr()
        assert "cannot be written" in printed.err
        assert "round 1" not in printed.err


class TestPrior:
    """An earlier release's certificate steers the campaign of the next."""

    @pytest.fixture
    def released(self, tmp_path: Path) -> Path:
        file = tmp_path / "fleet.yaml"
        file.write_text(PAPER_FLEET.read_text().replace("revision: fp8-2026-08", "revision: next"))
        return file

    def test_it_makes_the_next_campaign_cheaper_and_its_certificate_holds(
        self, planned: Path, released: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out, before = tmp_path / "out", str(planned / "certificate.json")
        assert main(["plan", str(released), "--prior", before, "--out", str(out)]) == 0
        assert "Prior: earlier release (certificate.json): " in capsys.readouterr().err
        assert main(["verify", str(out / "certificate.json")]) == 0
        spent = [
            json.loads((folder / "certificate.json").read_text())["spend"]["gpu_seconds_window"]
            for folder in (planned, out)
        ]
        assert spent[1] < spent[0]

    def test_the_same_release_has_nothing_to_believe(
        self, planned: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["plan", FLEET, "--prior", str(planned / "certificate.json")]) == 0
        assert "Prior: none." in capsys.readouterr().err

    @pytest.mark.parametrize("text", ["", "{}"])
    def test_what_is_no_certificate_is_bad_input(
        self, released: Path, tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "prior.json").write_text(text)
        assert main(["plan", str(released), "--prior", str(tmp_path / "prior.json")]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert "prior.json" in printed.err
        assert "certificate" in printed.err or "not a readable JSON file" in printed.err


class TestVerify:
    def test_a_certificate_that_was_just_issued_holds(
        self, planned: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["verify", str(planned / "certificate.json")]) == 0
        assert capsys.readouterr().out == "holds\n"

    @pytest.mark.parametrize("what", ["measurement", "interval", "plan", "digest"])
    def test_a_certificate_that_was_edited_does_not_hold(
        self, planned: Path, tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        document = json.loads((planned / "certificate.json").read_text())
        if what == "measurement":
            document["evidence"][0]["measurement"]["served_rps"] += 1.0
        elif what == "interval":
            document["intervals"][0]["lower"]["value_rps"] = 99.0
        elif what == "plan":
            document["conservative"]["allocations"][0]["replicas"] += 1
        else:
            document["spec_sha256"] = "0" * 64
        edited = tmp_path / "certificate.json"
        edited.write_text(json.dumps(document))
        assert main(["verify", str(edited)]) == 1
        lines = capsys.readouterr().out.splitlines()
        assert lines
        assert "holds" not in lines
        word = {
            "measurement": "measurement",
            "interval": "intervals",
            "plan": "conservative",
            "digest": "spec_sha256",
        }
        assert any(word[what] in line for line in lines)

    @pytest.mark.parametrize("text", ["", "{", "not json"])
    def test_a_file_that_is_no_json_is_bad_input(
        self, tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "certificate.json"
        file.write_text(text)
        assert main(["verify", str(file)]) == 2
        assert "not a readable JSON file" in capsys.readouterr().err

    def test_a_certificate_that_is_not_there_is_bad_input(self, tmp_path: Path) -> None:
        assert main(["verify", str(tmp_path / "none.json")]) == 2

    def test_another_document_does_not_hold(self, planned: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["verify", str(planned / "evidence.json")]) == 1
        assert "not a certificate" in capsys.readouterr().out


def test_help_explains_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "4  undetermined" in capsys.readouterr().out


def test_help_and_check_never_import_airflow_or_mlflow() -> None:
    code = (
        "import sys; from fleetsieve_airflow.cli import main; main(['check', sys.argv[1]]);"
        "print([name for name in ('airflow', 'mlflow', 'pandas', 'scipy', 'pulp') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, FLEET], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert done.stdout.splitlines()[-1] == "[]"
