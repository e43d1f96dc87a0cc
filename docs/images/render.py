"""Make the pictures of the README again, from a campaign on the fleet that ships with the project.

    python docs/images/render.py

Writes ``bounds_by_round.svg`` and, with Chromium's help, ``report.png`` beside this file.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from fleetsieve_airflow.backends.base import backend_for
from fleetsieve_airflow.campaign import run_campaign, verdicts_of
from fleetsieve_airflow.reporting.charts import bounds_by_round
from fleetsieve_airflow.reporting.report import render_report
from fleetsieve_airflow.spec import load_spec

HERE = Path(__file__).resolve().parent
FLEET = HERE.parents[1] / "dags" / "fleets" / "chat_and_code_h100.yaml"
#: The top of the report, down to the grid of what was measured.
WIDTH, HEIGHT = 1080, 1200


def main() -> None:
    """Plan the fleet, draw it, and take the screenshot."""
    spec = load_spec(FLEET)
    result = run_campaign(spec, backend_for(spec))
    (HERE / "bounds_by_round.svg").write_text(
        bounds_by_round(spec, result.decisions) + "\n", encoding="utf-8"
    )
    verdicts = verdicts_of(spec, result.evidence)
    report = render_report(spec, result.decisions, result.evidence, result.certificate, verdicts=verdicts)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        page.write_text(report, encoding="utf-8")
        screenshot(page, HERE / "report.png", Path(folder) / "profile")


def screenshot(page: Path, picture: Path, profile: Path) -> None:
    """Take a picture of the top of a page with headless Chromium."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("report.png needs Chromium on the PATH; bounds_by_round.svg is written.")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--hide-scrollbars",
    ]
    subprocess.run(
        [
            browser,
            *flags,
            "--disable-background-networking",
            f"--user-data-dir={profile}",
            f"--window-size={WIDTH},{HEIGHT}",
            f"--screenshot={picture}",
            page.as_uri(),
        ],
        check=True,
        capture_output=True,
        timeout=120,
    )


if __name__ == "__main__":
    main()
