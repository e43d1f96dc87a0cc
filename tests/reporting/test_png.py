"""The picture for chat: a PNG of the bounds by round."""

from __future__ import annotations

import struct
import sys

import pytest

from fleetsieve_airflow.errors import FleetsieveError
from fleetsieve_airflow.reporting.png import bounds_png
from tests.reporting import campaigns
from tests.reporting.campaigns import Campaign


@pytest.mark.parametrize(
    "campaign",
    [
        campaigns.paper_campaign(),
        campaigns.paper_campaign(1, chat=f"$x^2$ {campaigns.NASTY}"),
        campaigns.fewest_gpus_campaign(),
    ],
    ids=["decided", "first round with a nasty name", "fewest GPUs"],
)
def test_a_picture_is_a_small_png_of_960_by_480_pixels(campaign: Campaign) -> None:
    picture = bounds_png(campaign.spec, campaign.rounds)
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", picture[16:24]) == (960, 480)
    assert len(picture) < 100_000


def test_before_the_first_round_there_is_nothing_to_draw() -> None:
    with pytest.raises(FleetsieveError, match="no round to draw yet"):
        bounds_png(campaigns.chat_and_code(), [])


def test_without_matplotlib_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    campaign = campaigns.paper_campaign()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(FleetsieveError, match=r"fleetsieve-airflow\[png\]"):
        bounds_png(campaign.spec, campaign.rounds)
