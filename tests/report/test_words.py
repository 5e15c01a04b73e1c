from __future__ import annotations

from pathlib import Path

import pytest

from feduhb.report.runs import read_runs
from feduhb.report.words import approximate, backdoor_note, ended, forgotten, headline, notes, number
from report.folders import series, story, write


def test_faster(views):
    uhb = views[1]
    said = headline(views)
    assert said.startswith(
        f"FedUHB retrained without c00, c01 in {uhb.fired} rounds and {number(uhb.seconds)} s, ending at"
    )
    assert "; Retrain took 8 rounds and 16.0 s, ending at 95.6% test accuracy." in said
    assert said.endswith(f"FedUHB was {number(16 / uhb.seconds)} times as fast as Retrain.")


def test_slower(tmp_path: Path):
    said = headline(read_runs(story(tmp_path, retrain_rounds=3)))
    assert "FedUHB was slower: it took" in said
    assert "times as fast" not in said


def test_about_as_long(tmp_path: Path):
    views = read_runs([write(tmp_path / m, m, series(5)) for m in ("feduhb", "retrain")])
    assert headline(views).endswith("FedUHB took about as long as Retrain.")


def test_the_rule_never_fired(tmp_path: Path):
    said = headline(read_runs(story(tmp_path, scale=0.0)))
    assert "(its stop rule never fired, so every scheduled round was run)" in said


def test_no_retrain(tmp_path: Path):
    said = headline(read_runs(story(tmp_path)[:2]))
    assert said.endswith("No Retrain run on the same data is in this report to compare with.")
    assert "fast" not in said


def test_retrain_of_another_seed_is_no_yardstick(tmp_path: Path):
    views = read_runs(
        [write(tmp_path / "u", "feduhb", series(3)), write(tmp_path / "r", "retrain", series(9), seed=2)]
    )
    assert "No Retrain run on the same data" in headline(views)


def test_training_alone(tmp_path: Path):
    said = headline(read_runs(story(tmp_path)[:1]))
    assert said.startswith("The run original trained 4 clients in 8 rounds and 16.0 s")
    assert said.endswith("nothing was forgotten.")


def test_retrain_alone_speaks_for_itself(tmp_path: Path):
    said = headline(read_runs([write(tmp_path / "r", "retrain", series(1))]))
    assert said == "Retrain retrained without c00, c01 in 1 round and 2.00 s, ending at 48.0% test accuracy."


def test_retrain_is_introduced_once_and_approximate_methods_are_called_so(tmp_path: Path):
    paths = [write(tmp_path / m, m, series(n)) for m, n in (("feduhb", 4), ("federaser", 5), ("retrain", 8))]
    said = headline(read_runs(paths))
    assert said.count("Retrain took") == 1
    assert "FedEraser (approximate) ended at 93.0% test accuracy after 5 rounds and 10.0 s. " in said
    assert "FedEraser was 1.60 times as fast as Retrain." in said


def test_an_approximate_run_never_forgot(five):
    said = headline(five)
    assert said.startswith("FedUHB retrained without c00, c01 in")
    assert "FedEraser (approximate) ended at" in said
    assert "FedRecover (approximate) ended at" in said
    assert "forgot" not in said
    assert headline(five[::-1]).startswith("FedUHB"), "the exact ones are told in front"


def test_an_approximate_run_alone_names_the_request(five):
    said = headline(five[3:])
    assert said.startswith("FedEraser (approximate), asked to forget c00, c01, ended at 73.0% test accuracy")
    assert said.count("asked to forget") == 1


def test_an_approximate_run_without_scores(tmp_path: Path):
    path = write(tmp_path / "e", "federaser", series(3), changes={"scores": {}})
    assert headline(read_runs([path])).startswith(
        "FedEraser (approximate), asked to forget c00, c01, ended after 3 rounds and 6.00 s."
    )


def test_which_runs_are_approximate_is_told_in_one_sentence(five):
    assert approximate(five) == (
        "FedEraser and FedRecover are approximate: what the forgotten data shaped went in, "
        "and nothing bounds what such a model still knows of it."
    )
    assert approximate(five[:4]).startswith("FedEraser is approximate: ")
    assert approximate(five[:3]) == ""
    assert notes(five) == [approximate(five)], "that the original kept a history is no other training"


def test_many_runs_are_told_by_their_extremes(tmp_path: Path):
    scales = (0.3, 0.6, 0.9, 1.2)
    paths = [write(tmp_path / f"{s}", "feduhb", series(3 + i), scale=s) for i, s in enumerate(scales)]
    said = headline(read_runs([*paths, write(tmp_path / "r", "retrain", series(8))]))
    assert said.startswith("4 unlearning runs took 3 to 6 rounds and 6.00 to 12.0 s each")
    assert "The stop rule never fired in 4 of them." in said
    assert "Retrain took 8 rounds" in said


def test_how_many_of_many_are_approximate(tmp_path: Path, five):
    more = read_runs([write(tmp_path / "more", "feduhb", series(5), seed=7)])
    assert " 2 of them are approximate." in headline([*five, *more])


def test_seconds_of_other_engines_do_not_compare(tmp_path: Path):
    paths = [
        write(tmp_path / "u", "feduhb", series(3)),
        write(tmp_path / "r", "retrain", series(8), changes={"engine": {"name": "loop", "device": "cpu"}}),
    ]
    views = read_runs(paths)
    assert "do not compare" in headline(views)
    assert "times as fast" not in headline(views)
    assert notes(views) == ["These runs used different engines or versions, so their seconds do not compare."]


def test_seconds_nobody_measured(tmp_path: Path):
    zero = {"client_seconds": 0.0, "server_seconds": 0.0}
    views = read_runs([write(tmp_path / m, m, series(3), changes=zero) for m in ("feduhb", "retrain")])
    assert headline(views).endswith("Their seconds were not measured.")


def test_runs_that_agree_need_no_note(views):
    assert notes(views) == []


def test_runs_that_differ_are_told(tmp_path: Path):
    views = read_runs(
        [
            write(tmp_path / "a", "feduhb", series(3)),
            write(tmp_path / "b", "retrain", series(3), seed=2, forget="c03"),
        ]
    )
    assert notes(views) == [
        "These runs were not asked to forget the same: c00, c01; c03.",
        "These runs have different seeds: 1; 2.",
    ]


def test_other_data_and_other_training_are_told(tmp_path: Path):
    paths = [write(tmp_path / m, m, series(3)) for m in ("feduhb", "retrain")]
    config = paths[0] / "config.toml"
    config.write_text(
        config.read_text().replace("clients = 4", "clients = 5").replace("epochs = 2", "epochs = 3")
    )
    said = notes(read_runs(paths))
    assert said == [
        "These runs were not made on the same clients' data.",
        "The clients of these runs did not train with the same settings.",
    ]


def test_data_from_python_cannot_be_compared(tmp_path: Path):
    paths = [write(tmp_path / m, m, series(3)) for m in ("feduhb", "retrain")]
    for path in paths:
        text = (path / "config.toml").read_text()
        (path / "config.toml").write_text("seed = 1\n" + text[text.index("[train]") :])
    assert "came from Python code" in notes(read_runs(paths))[0]


@pytest.mark.parametrize(
    ("forget", "said"),
    [
        ("c00", "c00"),
        ("c02:0-9+12", "rows 0-9+12 of c02"),
        ("c00,class:3", "c00, class 3"),
        ("a,b,c,d,e,f,g,h", "a, b, c, d, e, f and 2 more"),
    ],
)
def test_what_was_forgotten_in_words(tmp_path: Path, forget: str, said: str):
    assert forgotten(read_runs([write(tmp_path / "u", "feduhb", series(3), forget=forget)])[0]) == said


def test_why_runs_ended(views, tmp_path: Path):
    _, uhb, retrain = views
    assert ended(uhb).startswith(f"FedUHB stopped after round {uhb.fired}: movement")
    assert ended(retrain) == "Retrain: no stop rule, 8 rounds"
    silent = read_runs(story(tmp_path / "silent", scale=0.0))[1]
    assert ended(silent) == "FedUHB: the stop rule did not fire within 12 rounds"


def test_the_benign_floor_is_named_only_where_it_is_one(tmp_path: Path, views):
    assert backdoor_note(views) == "Benign floor: Retrain, which never saw the trigger."
    assert "No Retrain run here" in backdoor_note(views[:2])
    half = read_runs([write(tmp_path / "half", "retrain", series(3), forget="c00")])
    assert "Not every poisoned client was forgotten" in backdoor_note(half)


def test_the_floor_of_an_unnamed_backdoor_is_conditional(tmp_path: Path):
    path = write(tmp_path / "r", "retrain", series(3))
    text = (path / "config.toml").read_text()
    (path / "config.toml").write_text(text[text.index("[train]") :])
    assert "if every poisoned client was forgotten" in backdoor_note(read_runs([path]))


@pytest.mark.parametrize(
    ("value", "said"), [(0, "0.00"), (0.0123, "0.0123"), (1.2, "1.20"), (559.4, "559"), (12345.6, "12,346")]
)
def test_numbers(value: float, said: str):
    assert number(value) == said
