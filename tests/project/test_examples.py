"""The examples of a pretrained head and of adapters run as they stand, write no files, and forget what they say."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.slow


def run_example(name: str, capsys: pytest.CaptureFixture[str]) -> tuple[str, dict[str, list[float]]]:
    """Return the first line that an example prints, and the numbers of its table by run."""
    with torch.random.fork_rng(devices=[]):
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    first, _, *rows = capsys.readouterr().out.splitlines()
    table = {row[:11].strip(): [float(part.rstrip("%")) for part in row[11:].split()] for row in rows}
    assert [*table] == ["with leaver", "feduhb", "retrain"]
    assert [*Path.cwd().iterdir()] == []
    return first, table


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_pretrained_head(capsys):
    """Only the leaver holds 9s, so nobody knows them once it is forgotten."""
    first, table = run_example("pretrained_head.py", capsys)
    assert first == "trained and sent: 645 of 5541 parameters"
    for _, others, _ in table.values():
        assert others > 90
    assert table["with leaver"][2] > 50
    assert table["feduhb"][2] == table["retrain"][2] == 0
    assert abs(table["feduhb"][1] - table["retrain"][1]) < 5


def test_adapters_on_tokens(capsys):
    """The leaver's labels are the wrong way round: a model that never saw them finds them hard to believe."""
    first, table = run_example("lora_tokens.py", capsys)
    assert first == "trained and sent: 578 of 17282 parameters"
    losses = {name: loss for name, (_, _, loss) in table.items()}
    for name in ("feduhb", "retrain"):
        assert table[name][1] > 70
        assert losses[name] > losses["with leaver"] + 0.3
    assert abs(table["feduhb"][1] - table["retrain"][1]) < 8
