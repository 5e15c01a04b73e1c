"""What a person sees of work in several steps: a line each, or one bar over all."""

from __future__ import annotations

import io

import pytest

from feduhb.runs.folder import Round
from feduhb.runs.progress import show_steps
from feduhb.stopping import StopReason

ROUND = Round(2, ("a",), ("a",), 0.123456)
LAST = Round(3, ("a",), ("a",), 0.1, stopped=StopReason("enough", 0.1, 0.25))


class Screen(io.StringIO):
    """A standard error that is a terminal."""

    def isatty(self) -> bool:
        return True


def watch(monkeypatch: pytest.MonkeyPatch) -> Screen:
    shown = Screen()
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setenv("COLUMNS", "160")
    return shown


def test_a_line_for_each_step(capsys: pytest.CaptureFixture[str]):
    with show_steps("lines", "audit", 3) as step:
        show = step("noise: training", 40)
        show(ROUND)
        show(LAST)
        step("never", 40)(ROUND)
    assert capsys.readouterr() == ("", "audit 1/3  noise: training\naudit 2/3  never\n")


@pytest.mark.parametrize("wish", ["auto", None])
def test_silent_where_nobody_watches(wish, capsys: pytest.CaptureFixture[str]):
    with show_steps(wish, "audit", 3) as step:
        step("noise: training", 40)(ROUND)
    assert capsys.readouterr() == ("", "")


def test_the_callers_own_is_told_of_every_round(capsys: pytest.CaptureFixture[str]):
    seen: list[Round] = []
    with show_steps(seen.append, "audit", 2) as step:
        step("one", 4)(ROUND)
        step("two", 4)(LAST)
    assert seen == [ROUND, LAST]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("wish", ["auto", "lines"])
def test_one_bar_over_all_steps_on_a_terminal(wish, monkeypatch: pytest.MonkeyPatch):
    screen = watch(monkeypatch)
    with show_steps(wish, "audit", 2) as step:
        step("noise: training", 4)(ROUND)
        step("never", 4)(LAST)
    written = screen.getvalue()
    assert "audit" in written
    assert "2/2" in written
    assert "never  4/4" in written
    assert "stopped" in written


def test_nothing_on_a_terminal_where_none_is_wished(monkeypatch: pytest.MonkeyPatch):
    screen = watch(monkeypatch)
    with show_steps(None, "audit", 2) as step:
        step("one", 4)(ROUND)
    assert screen.getvalue() == ""


def test_more_steps_than_were_counted_do_no_harm(monkeypatch: pytest.MonkeyPatch):
    screen = watch(monkeypatch)
    with show_steps("auto", "audit", 1) as step:
        for name in ("one", "two", "three"):
            step(name, 4)(ROUND)
    assert "three" in screen.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_total_that_is_known_only_later(
    terminal, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    left = ["one", "two"]
    screen = watch(monkeypatch) if terminal else None
    with show_steps("lines", "audit", lambda: len(left)) as step:
        step(left.pop(0), 4)(ROUND)
        left.append("three")  # not foreseen
        step(left.pop(0), 4)(ROUND)
        step(left.pop(0), 4)(LAST)
    written = capsys.readouterr().err if screen is None else screen.getvalue()
    assert "3/3" in written
    if not terminal:
        assert written == "audit 1/2  one\naudit 2/3  two\naudit 3/3  three\n"


def test_an_error_in_a_step_comes_through(monkeypatch: pytest.MonkeyPatch):
    screen = watch(monkeypatch)

    def breaks() -> None:
        with show_steps("auto", "audit", 2) as step:
            step("one", 4)
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        breaks()
    assert "audit" in screen.getvalue()
