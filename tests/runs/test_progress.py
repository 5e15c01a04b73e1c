"""What a person sees of a run: one line a round, or a bar, or nothing."""

from __future__ import annotations

import io

import pytest

from feduhb.runs.execute import watch_rounds
from feduhb.runs.folder import Round
from feduhb.stopping import StopReason

ROUND = Round(2, ("a",), ("a",), 0.123456)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (ROUND, "moved 0.123"),
        (Round(2, ("a",), ("a",), 0.5, threshold=0.25), "moved 0.5  stops below 0.25"),
        (
            Round(2, ("a",), ("a",), 0.1, threshold=0.25, stopped=StopReason("enough", 0.1, 0.25)),
            "moved 0.1  stopped",
        ),
        (
            Round(2, ("a",), ("a",), 0.5, scores={"test_accuracy": 0.9314, "test_loss": 1.0}),
            "loss 1.000  accuracy 93.1%  moved 0.5",
        ),
    ],
)
def test_a_round_in_one_line(record: Round, words: str):
    assert str(record) == words


class Screen(io.StringIO):
    """A standard error that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_lines_go_to_standard_error(capsys: pytest.CaptureFixture[str]):
    with watch_rounds("lines", "feduhb", 40) as show:
        assert show is not None
        show(ROUND)
    assert capsys.readouterr() == ("", "feduhb 3/40  moved 0.123\n")


@pytest.mark.parametrize("wish", ["auto", None])
def test_silent_where_nobody_watches(wish, capsys: pytest.CaptureFixture[str]):
    with watch_rounds(wish, "feduhb", 40) as show:
        assert show is None
    assert capsys.readouterr() == ("", "")


def test_the_callers_own_is_taken_as_it_is():
    seen: list[Round] = []
    with watch_rounds(seen.append, "feduhb", 40) as show:
        assert show is not None
        show(ROUND)
    assert seen == [ROUND]


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch):
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("COLUMNS", "200")
    with watch_rounds("auto", "feduhb", 40) as show:
        assert show is not None
        show(Round(0, ("a",), ("a",), 0.5))
        show(Round(1, ("a",), ("a",), 0.1, stopped=StopReason("enough", 0.1, 0.25)))
    drawn = screen.getvalue()
    assert "feduhb" in drawn
    assert "2/2" in drawn, "a run that stopped early has come to its end"
    assert "moved 0.1  stopped" in drawn
