from __future__ import annotations

from pathlib import Path

import pytest

from feduhb.report.runs import read_runs
from feduhb.report.words import (
    describe_end,
    describe_floor,
    format_number,
    format_request,
    headline,
    join_names,
    list_notes,
    list_settings,
    name_approximate,
)
from report.folders import series, story, write


def test_a_faster_run(views):
    uhb = views[1]
    said = headline(views)
    assert said.startswith(f"FedUHB retrained without c00, c01 in {uhb.fired} rounds, ")
    assert said.endswith(f"{format_number(16 / uhb.seconds)} times as fast as Retrain.")


def test_a_slower_run(tmp_path: Path):
    said = headline(read_runs(story(tmp_path, retrain_rounds=3)))
    assert "slower" in said
    assert "times as fast" not in said


def test_about_as_long(tmp_path: Path):
    views = read_runs([write(tmp_path / m, m, series(5)) for m in ("feduhb", "retrain")])
    assert headline(views).endswith("about as long as Retrain.")


def test_without_a_retrain_run_on_the_same_data_nothing_is_compared(tmp_path: Path):
    views = read_runs(
        [write(tmp_path / "u", "feduhb", series(3)), write(tmp_path / "r", "retrain", series(9), seed=2)]
    )
    for some in (views, views[:1]):
        assert "no Retrain run on the same data" in headline(some)
        assert "fast" not in headline(some)


def test_training_alone(tmp_path: Path):
    said = headline(read_runs(story(tmp_path)[:1]))
    assert said == "original trained 4 clients in 8 rounds; nothing was forgotten."


def test_retrain_alone(tmp_path: Path):
    said = headline(read_runs([write(tmp_path / "r", "retrain", series(1))]))
    assert said == "Retrain retrained without c00, c01 in 1 round."


def test_an_approximate_run_never_forgot(five):
    assert headline(five[::-1]).startswith("FedUHB retrained"), "the exact run comes first"
    said = headline(five[3:])
    assert said.startswith("FedEraser (approximate) was asked to forget c00, c01 in 4 rounds")
    assert "forgotten" not in said
    assert "forgot " not in said


def test_many_runs_are_summed_up_by_their_range(tmp_path: Path):
    paths = [write(tmp_path / f"{i}", "feduhb", series(3 + i), scale=0.3 * (i + 1)) for i in range(4)]
    said = headline(read_runs([*paths, write(tmp_path / "r", "retrain", series(8))]))
    assert said == "4 unlearning runs took 3 to 6 rounds and ended at 84.0% to 94.5% test accuracy."


LONG = ",".join(f"hospital-of-the-{i:02}-district-{i:032x}" for i in range(9))


@pytest.mark.parametrize(
    ("forget", "said"),
    [
        ("c00,c01", "c00, c01"),
        (LONG, "9 clients"),
        (f"{LONG},c7:0-9", "10 groups of rows"),
        ("x" * 99, "x" * 39 + "…"),
    ],
)
def test_a_headline_is_short_however_long_the_names_are(tmp_path: Path, forget: str, said: str):
    name = "m" * 90
    paths = [write(tmp_path / f"{m[:3]}", m, series(3), forget=forget) for m in (name, "retrain")]
    found = headline(read_runs(paths))
    assert f" {said} in 3 rounds, " in found
    assert len(found) < 160
    assert found.count(". ") == 0


def test_training_runs_are_counted(tmp_path: Path):
    views = read_runs([write(tmp_path / f"{i}", None, series(i + 2)) for i in range(5)])
    assert headline(views) == (
        "5 training runs took 2 to 6 rounds and ended at 72.0% to 94.5% test accuracy; nothing was forgotten."
    )


def test_the_settings_name_date_data_clients_request_and_model(views, tmp_path: Path):
    assert list_settings(views) == [
        "15 November 2026", "digits", "4 clients", "forget c00, c01", "rounds 12, epochs 2, seed 1", "model of 4,810 parameters",
    ]  # fmt: skip
    other = write(tmp_path / "o", "feduhb", series(3), seed=2, forget="c03", changes={"finished": "soon\x07"})
    text = (other / "config.toml").read_text()
    federation = 'data = "mnist-5k"\npartition = "iid"\nmodel = "mlp"\n'
    (other / "config.toml").write_text(text.replace('data = "digits"\n', federation))
    assert list_settings([views[1], *read_runs([other])]) == [
        "soon?", "digits / mnist-5k (iid)", "4 remaining clients", "forget c00, c01; c03",
        "rounds 12, epochs 2, seed 1 / 2", "model of 4,810 parameters / mlp model of 4,810 parameters",
    ]  # fmt: skip
    (other / "config.toml").write_text("seed = 1\n[train]\n")
    assert list_settings(read_runs([other]))[1] == "data from Python code"


def test_approximate_runs_are_named(five):
    assert name_approximate(five).startswith("FedEraser and FedRecover are approximate: ")
    assert name_approximate(five[:4]).startswith("FedEraser is approximate: ")
    assert name_approximate(five[:3]) == ""
    assert list_notes(five) == [name_approximate(five)], "keeping a history does not change the training"


def test_seconds_of_other_engines_do_not_compare(tmp_path: Path):
    paths = [
        write(tmp_path / "u", "feduhb", series(3)),
        write(tmp_path / "r", "retrain", series(8), changes={"engine": {"name": "loop", "device": "cpu"}}),
    ]
    views = read_runs(paths)
    assert "do not compare" in headline(views)
    assert "times as fast" not in headline(views)
    assert list_notes(views) == ["Different engines or versions: seconds do not compare."]


def test_seconds_that_were_not_measured(tmp_path: Path):
    zero = {"client_seconds": 0.0, "server_seconds": 0.0}
    views = read_runs([write(tmp_path / m, m, series(3), changes=zero) for m in ("feduhb", "retrain")])
    assert headline(views).endswith("not measured.")


def test_runs_that_agree_need_no_note(views):
    assert list_notes(views) == []


def test_runs_that_differ_are_noted(tmp_path: Path):
    runs = [
        write(tmp_path / "a", "feduhb", series(3)),
        write(tmp_path / "b", "retrain", series(3), seed=2, forget="c03"),
    ]
    config = runs[0] / "config.toml"
    text = config.read_text()
    assert list_notes(read_runs(runs)) == ["Different requests: c00, c01; c03.", "Different seeds: 1; 2."]
    config.write_text(text.replace("clients = 4", "clients = 5").replace("epochs = 2", "epochs = 3"))
    assert list_notes(read_runs(runs))[2:] == [
        "Different clients' data.",
        "Different training settings of the clients.",
    ]


def test_data_from_python_cannot_be_compared(tmp_path: Path):
    paths = [write(tmp_path / m, m, series(3)) for m in ("feduhb", "retrain")]
    for path in paths:
        text = (path / "config.toml").read_text()
        (path / "config.toml").write_text("seed = 1\n" + text[text.index("[train]") :])
    assert "came from Python code" in list_notes(read_runs(paths))[0]


@pytest.mark.parametrize(
    ("forget", "said"),
    [
        ("c00", "c00"),
        ("c02:0-9+12", "rows 0-9+12 of c02"),
        ("c00,class:3", "c00, class 3"),
        ("a,b,c,d,e,f,g,h", "a, b, c, d, e, f and 2 more"),
    ],
)
def test_a_request_in_words(tmp_path: Path, forget: str, said: str):
    assert format_request(read_runs([write(tmp_path / "u", "feduhb", series(3), forget=forget)])[0]) == said


def test_why_runs_ended(views, tmp_path: Path):
    _, uhb, retrain = views
    assert describe_end(uhb).startswith(f"FedUHB stopped after round {uhb.fired}: movement")
    assert describe_end(retrain) == "Retrain: no stop rule, 8 rounds"
    silent = read_runs(story(tmp_path / "silent", scale=0.0))[1]
    assert describe_end(silent) == "FedUHB: the stop rule did not fire within 12 rounds"


def test_the_benign_floor_is_named_only_where_it_is_one(tmp_path: Path, views):
    assert describe_floor(views).startswith("Floor: Retrain")
    assert "No Retrain run here" in describe_floor(views[:2])
    half = read_runs([write(tmp_path / "half", "retrain", series(3), forget="c00")])
    assert "Not every poisoned client was forgotten" in describe_floor(half)
    path = write(tmp_path / "r", "retrain", series(3))
    text = (path / "config.toml").read_text()
    (path / "config.toml").write_text(text[text.index("[train]") :])
    assert "if every poisoned client was forgotten" in describe_floor(read_runs([path]))


@pytest.mark.parametrize(
    ("value", "said"), [(0, "0.00"), (0.0123, "0.0123"), (1.2, "1.20"), (559.4, "559"), (12345.6, "12,346")]
)
def test_numbers(value: float, said: str):
    assert format_number(value) == said


def test_names_are_joined():
    assert [join_names(["a", "b", "c"][:n]) for n in (1, 2, 3)] == ["a", "a and b", "a, b and c"]
    assert join_names(["5", "10"], "or") == "5 or 10"
