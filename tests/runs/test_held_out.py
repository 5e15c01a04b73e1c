"""Runs that record held-out values and distances: exact, resumed at every round, replayed, and the best model kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import feduhb
from federations import SIZES, ragged, tensors
from feduhb.core.flat import flatten
from feduhb.engines.scoring import score_model
from feduhb.errors import ConfigError, RunFolderError
from feduhb.report.runs import read_runs
from feduhb.report.words import describe_end
from feduhb.runs.checkpoint import BEST
from feduhb.runs.folder import RunFolder
from feduhb.runs.prepare import run_method

HOW: dict[str, Any] = {"epochs": 1, "batch_size": 6, "lr": 0.05, "engine": "loop", "show": None}
PATIENCE = feduhb.patience("held_out_score", rounds=2, gain=0.0, smooth=2, first=2)
ON_LOSS = feduhb.patience("held_out_loss", rounds=2, gain=0.5, smooth=1, first=1)
DISTANCE = feduhb.distance_stop(0.5, window=2, first=3)
RULES = {"score": PATIENCE, "loss": ON_LOSS, "distance": DISTANCE}
LEAVERS = ("bee", "elk")


class Killed(BaseException):
    """An exception that no handler catches."""


def make(clients: Any = SIZES, **changes: Any) -> feduhb.Federation:
    """A ragged federation in which every client but ant has held-out data, drawn from its name."""
    federation = ragged(clients, **changes)
    held = {c: tensors(f"held {c}", 4 + len(c)) for c in federation.clients if c != "ant"}
    return federation.replace(held_out=held)


def noise(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(99)
    x = torch.randn(size, 1, 12, 12, generator=draw, dtype=torch.float64) * 50
    return x, torch.randint(0, 3, (size,), generator=draw)


def unlearn(
    federation: feduhb.Federation, forget: Any, rule: Any, rounds: int = 8, **more: Any
) -> feduhb.Run:
    trained = feduhb.train(federation, 1, **HOW)
    return feduhb.unlearn(trained, forget, stop=rule, rounds=rounds, show=None, **more)


def list_series(run: feduhb.Run) -> tuple[Any, ...]:
    return tuple((record.moved, record.distance, dict(record.held_out)) for record in run.rounds)


def train_alone(federation: feduhb.Federation, rule: Any, like: feduhb.Run, **more: Any) -> feduhb.Run:
    """Run the method of a run in a federation that never held what was forgotten."""
    return run_method(federation, like.method, like.settings, rounds=8, stop=rule, engine="loop", **more)


@pytest.mark.parametrize("rule", [*RULES.values()], ids=[*RULES])
def test_whole_clients_leave_no_trace_in_the_series_or_the_model(rule):
    """Noise in place of the leavers' data, training and held-out alike, and a federation that never held them."""
    how = {"keep": "best", "record": ("held_out", "distance")}
    real = unlearn(make(), LEAVERS, rule, **how)
    noisy = make(bee=noise(40), elk=noise(2))
    noisy = noisy.replace(held_out={**noisy.held_out, "bee": noise(7), "elk": noise(1)})
    again = unlearn(noisy, LEAVERS, rule, **how)
    never = train_alone(make({c: n for c, n in SIZES.items() if c not in LEAVERS}), rule, real, **how)
    for other in (again, never):
        assert torch.equal(real.params, other.params)
        assert list_series(real) == list_series(other)
        assert (real.stopped, real.kept_round) == (other.stopped, other.kept_round)
    assert len(real.rounds) < 8, "the rule fires, so its decisions are compared too"


@pytest.mark.parametrize("rule", [*RULES.values()], ids=[*RULES])
def test_rows_and_classes_leave_no_trace(rule):
    """Class 2 is in the held-out data of the remaining clients too, and must not be scored there."""
    how = {"keep": "best", "record": ("held_out", "distance")}
    real = unlearn(make(), "dog:0+3,class:2", rule, **how)
    federation = make()
    kept = {}
    for client, examples in federation.clients.items():
        x, y = examples.all()
        stays = (y != 2) & ~(
            (torch.arange(len(y)) == 0) | (torch.arange(len(y)) == 3) if client == "dog" else y == 9
        )
        if stays.any():
            kept[client] = (x[stays], y[stays])
    pairs = {c: e.all() for c, e in federation.held_out.items() if c in kept}
    held = {c: (x[y != 2], y[y != 2]) for c, (x, y) in pairs.items()}
    never = train_alone(ragged({}, **kept).replace(held_out=held), rule, real, **how)
    assert torch.equal(real.params, never.params)
    assert list_series(real) == list_series(never)


def test_the_values_are_of_the_model_that_was_sent():
    """They are one round behind: those of round 1 are of the fresh model. Means over clients are by held-out examples."""
    run = unlearn(make(), LEAVERS, feduhb.never, 2, record=("held_out", "distance"))
    federation = run.federation
    held = [federation.held_out[c] for c in sorted(federation.held_out)]
    assert {len(e) for e in held} == {7}
    found = [score_model(federation.fresh_model(), e, federation.loss) for e in held]
    expected = [sum(part) / len(part) for part in zip(*found, strict=True)]
    assert [*run.rounds[0].held_out.values()] == pytest.approx(expected, rel=1e-12)
    assert list(run.rounds[0].held_out) == ["loss", "accuracy"]
    start = flatten(federation.fresh_model())
    assert run.rounds[1].distance == pytest.approx(float((run.params - start).norm()), rel=1e-12)
    assert run.rounds[0].distance == pytest.approx(run.rounds[0].moved, rel=1e-12)


def test_a_run_that_nobody_asked_records_nothing_new(tmp_path):
    feduhb.train(make(), 1, **HOW, out=tmp_path / "run")
    (line,) = (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    assert not {"held_out", "distance"} & {*json.loads(line)}
    assert [*json.loads(line)][-1] == "scores"
    text = (tmp_path / "run" / "config.toml").read_text()
    assert not [word for word in ("keep =", "record", "stop") if word in text]
    assert "kept_round" not in RunFolder(tmp_path / "run").result()


def test_a_live_decision_equals_its_replay_and_is_opened_again(tmp_path):
    for name, rule in RULES.items():
        trained = feduhb.train(make(), 25, **HOW, stop=rule, out=tmp_path / name)
        assert 2 < len(trained.rounds) < 25
        opened = feduhb.open_run(tmp_path / name, make())
        assert opened.stop == rule
        assert feduhb.replay(rule, opened.series) == len(opened.rounds)
        assert feduhb.replay(feduhb.dynamic_stop(0.6), opened.series) == feduhb.replay(
            feduhb.dynamic_stop(0.6), [record.moved for record in opened.rounds]
        )
        (view,) = read_runs([tmp_path / name])
        assert (view.judged, view.fired) == (True, len(trained.rounds))
        assert describe_end(view).endswith(trained.stopped)


def test_config_records_what_each_rule_watches(tmp_path):
    for name, rule in RULES.items():
        feduhb.train(make(), 1, **HOW, stop=rule, keep="best", record=("distance",), out=tmp_path / name)
    train = {name: RunFolder(tmp_path / name).config()["train"] for name in RULES}
    assert train["score"]["stop"] == {
        "watch": "held_out_score",
        "rounds": 2,
        "gain": 0.0,
        "smooth": 2,
        "first": 2,
    }
    assert train["distance"]["stop"] == {"share": 0.5, "window": 2, "first": 3, "watch": "distance"}
    assert {(one["keep"], *one["record"]) for one in train.values()} == {("best", "distance")}


def interrupt_after(rounds: int) -> Any:
    def show(record: feduhb.Round) -> None:
        if record.round + 1 == rounds:
            raise Killed

    return show


@pytest.mark.parametrize("method", ["feduhb", "retrain"])
@pytest.mark.parametrize("rule", [*RULES.values()], ids=[*RULES])
def test_a_run_resumed_after_any_round_ends_the_same(rule, method, tmp_path):
    trained = feduhb.train(make(), 1, **HOW)
    how = {"method": method, "stop": rule, "keep": "best", "rounds": 8, "record": ("held_out",)}
    whole = feduhb.unlearn(trained, LEAVERS, **how, out=tmp_path / "whole", show=None)
    for rounds in range(1, len(whole.rounds) + 1):
        out = tmp_path / str(rounds)
        with pytest.raises(Killed):
            feduhb.unlearn(trained, LEAVERS, **how, out=out, show=interrupt_after(rounds))
        resumed = feduhb.unlearn(trained, LEAVERS, **how, out=out, resume=True, show=None)
        assert torch.equal(resumed.params, whole.params)
        assert list_series(resumed) == list_series(whole)
        files, expected = (dict(RunFolder(one).result()) for one in (out, tmp_path / "whole"))
        assert all(
            files[key] == expected[key] for key in ("kept_round", "weights_sha256", "stopped", "scores")
        )


def test_the_best_model_is_the_one_that_was_sent_in_the_round_with_the_best_score(tmp_path):
    models: dict[int, torch.Tensor] = {}

    def look(record: feduhb.Round) -> None:
        found = load_file(tmp_path / "run" / "state.safetensors")
        models[record.round + 1] = found["params"]
        assert (BEST in found) == (record.round > 0)

    run = feduhb.train(make(), 6, **{**HOW, "show": look}, keep="best", out=tmp_path / "run")
    scores = [record.held_out["accuracy"] for record in run.rounds]
    best = max(range(1, 6), key=lambda t: scores[t])
    assert run.kept_round == best < 6
    assert torch.equal(run.params, models[best])
    assert not torch.equal(run.params, models[6])
    result = dict(RunFolder(tmp_path / "run").result())
    assert (result["kept_round"], result["rounds"]) == (best, 6)
    assert result["scores"] == run.rounds[best - 1].scores
    assert set(load_file(tmp_path / "run" / "state.safetensors")) == {"params"}
    opened = feduhb.open_run(tmp_path / "run", make())
    assert (opened.keep, opened.kept_round) == ("best", best)
    assert torch.equal(opened.params, run.params)
    (view,) = read_runs([tmp_path / "run"])
    assert f"kept: the model after round {best}" in describe_end(view)


def test_one_round_keeps_its_model_because_the_fresh_one_does_not_count():
    once = feduhb.train(make(), 1, **HOW, keep="best")
    assert once.kept_round == 1
    assert torch.equal(once.params, feduhb.train(make(), 1, **HOW).params)


def test_a_kill_while_the_run_ends_keeps_the_best_model(monkeypatch, tmp_path):
    """The final checkpoint holds the best model alone; result.json is not there yet."""
    whole = feduhb.train(make(), 5, **HOW, keep="best")

    def kill(*_: Any) -> None:
        raise Killed

    monkeypatch.setattr(RunFolder, "prepare", kill)
    with pytest.raises(Killed):
        feduhb.train(make(), 5, **HOW, keep="best", out=tmp_path / "run")
    monkeypatch.undo()
    resumed = feduhb.train(make(), 5, **HOW, keep="best", out=tmp_path / "run", resume=True)
    assert torch.equal(resumed.params, whole.params)
    assert RunFolder(tmp_path / "run").result().get("kept_round") == whole.kept_round


def test_a_resumed_run_must_keep_and_record_the_same(tmp_path):
    with pytest.raises(Killed):
        feduhb.train(make(), 3, **{**HOW, "show": interrupt_after(1)}, keep="best", out=tmp_path / "run")
    with pytest.raises(
        RunFolderError, match=r"was started with train\.keep = 'best', not None; resume it with"
    ):
        feduhb.train(make(), 3, **HOW, out=tmp_path / "run", resume=True)


def test_a_rule_that_never_fires_is_visible(tmp_path):
    feduhb.train(make(), 3, **HOW, stop=feduhb.patience(), out=tmp_path / "run")
    (view,) = read_runs([tmp_path / "run"])
    assert describe_end(view) == "original: the stop rule did not fire within 3 rounds"


NONE = "this needs held-out data of the remaining clients, and they have none; "


@pytest.mark.parametrize("how", [{"stop": PATIENCE}, {"keep": "best"}, {"record": ("held_out",)}], ids=str)
def test_a_federation_without_held_out_data_is_refused_before_anything_is_erased(how, tmp_path):
    trained = feduhb.train(ragged(), 2, **HOW, keep_history=True, out=tmp_path / "old")
    history = sorted(path.name for path in (tmp_path / "old" / "history").rglob("*"))
    with pytest.raises(ConfigError, match=f"^{NONE}"):
        feduhb.unlearn(trained, LEAVERS, **how, out=tmp_path / "new", show=None)
    assert history == sorted(path.name for path in (tmp_path / "old" / "history").rglob("*"))
    assert not (tmp_path / "new").exists()
    assert feduhb.unlearn(trained, LEAVERS, stop=DISTANCE, rounds=3, show=None).rounds[0].held_out == {}


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (
            {"keep": "first"},
            "keep is 'first'; give 'last', or 'best' for the model with the best held-out score",
        ),
        ({"record": ("gradients",)}, "a run cannot record 'gradients'; choose from held_out and distance"),
    ],
)
def test_words_that_are_not_known(how, words):
    with pytest.raises(ConfigError) as error:
        feduhb.train(make(), 1, **HOW, **how)
    assert str(error.value) == words


def test_a_federation_without_a_score_can_watch_its_loss():
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(30, 3, generator=draw), torch.randn(30, generator=draw)
    data = {"a": (x[:8], y[:8]), "b": (x[8:16], y[8:16])}
    held = {"a": (x[16:20], y[16:20]), "b": (x[20:22], y[20:22])}
    net = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Flatten(0))
    federation = feduhb.Federation(data, (x[22:], y[22:]), net, held_out=held, loss="mse")
    with pytest.raises(
        ConfigError, match=r"^this federation has no score to watch; give it one, such as scores="
    ):
        feduhb.train(federation, 2, **HOW, stop=PATIENCE)
    run = feduhb.train(federation, 3, **HOW, stop=ON_LOSS)
    assert list(run.rounds[0].held_out) == ["loss"]
    scored = feduhb.Federation(data, (x[22:], y[22:]), net, held_out=held, loss="mse", scores="rmse")
    best = feduhb.train(scored, 5, **HOW, keep="best")
    assert best.series.best == "low"
    errors = [record.held_out["rmse"] for record in best.rounds]
    assert errors[best.kept_round] == min(errors[1:])


@pytest.mark.parametrize("engine", ["loop", "pool", "stacked"])
def test_a_loss_that_is_not_finite_for_one_client_is_not_recorded(engine):
    """The mean of the other clients would make a model that has diverged look good."""
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(12, 3, generator=draw), torch.randn(12, 1, generator=draw)
    parts = {name: (x[4 * i : 4 * i + 4], y[4 * i : 4 * i + 4]) for i, name in enumerate("abc")}
    held = {**parts, "b": (parts["b"][0] * 1e20, parts["b"][1])}
    net = torch.nn.Linear(3, 1)
    federation = feduhb.Federation(parts, (x, y), net, held_out=held, loss="mse", scores="mae")
    run = feduhb.train(federation, 2, **{**HOW, "engine": engine}, record=("held_out",))
    assert [[*record.held_out] for record in run.rounds] == [["mae"], ["mae"]]
    assert run.series.loss == (None, None)
    kept = feduhb.train(federation.without(["b"]), 2, **{**HOW, "engine": engine}, record=("held_out",))
    assert [[*record.held_out] for record in kept.rounds] == [["loss", "mae"], ["loss", "mae"]]


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"stop": PATIENCE}, {"stop": DISTANCE, "keep": "best"}], ids=str)
def test_an_audit_repeats_the_rule_and_the_choice(how, tmp_path: Path):
    federation = feduhb.load("digits", clients=6, per_client=60, model="mlp", seed=2)
    train = {"epochs": 2, "lr": 0.1, "engine": "loop", "show": None}
    trained = feduhb.train(federation, 12, **train, out=tmp_path / "old")
    new = feduhb.unlearn(trained, ["c01", "c04"], rounds=25, **how, out=tmp_path / "new", show=None)
    found = feduhb.audit(new, trained, relearn=0, shadows=4, show=None)
    assert found.exactness is not None
    assert found.exactness.exact
    assert len(new.rounds) < 25
    assert found.verdict.word == "forgotten", found.verdict.reasons


def test_a_report_shows_the_held_out_score_and_where_rules_would_have_stopped(tmp_path):
    rule = feduhb.patience("held_out_accuracy", rounds=30)
    feduhb.train(
        make(), 14, **HOW, stop=rule, keep="best", record=("held_out", "distance"), out=tmp_path / "run"
    )
    feduhb.train(make(), 3, **HOW, out=tmp_path / "plain")
    written = feduhb.report([tmp_path / "run", tmp_path / "plain"], tmp_path / "report")
    page = (tmp_path / "report" / "report.html").read_text()
    assert "Held-out accuracy of the clients" in page
    assert "the held-out loss: not within 14 rounds; by the distance: not within 14 rounds" in page
    assert "the stop rule did not fire within 14 rounds; kept: the model after round " in page
    assert "held-out.png" in {path.name for path in written}
    run = feduhb.open_run(tmp_path / "run", make())
    card = run.card()
    assert f"## Scores\n\nAfter round {run.kept_round}, whose model was kept:\n" in card
    assert (
        f"the one after round {feduhb.open_run(tmp_path / 'run', make()).kept_round}, with the best score"
        in card
    )
    only = feduhb.report([tmp_path / "plain"], tmp_path / "other")
    assert "held-out.png" not in {path.name for path in only}
