"""Crab: windows, selected rounds and clients, the rollback, and FedEraser as its limit."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
import torch

import feduhb
from federations import ragged
from feduhb.core.types import Updates
from feduhb.errors import ConfigError
from feduhb.methods import Crab, FedEraser, change_method, settings_of
from feduhb.methods.binding import get_bound, select_once, unbind
from feduhb.methods.crab import count_share, cut_windows
from feduhb.runs.history import DiskHistory
from feduhb.runs.loop import run
from runs.remembering import Remembered, remember
from toys import block_of, quadratics

START = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
LAYOUT = (("weight", (1, 2)), ("bias", (1,)))
FALLING = (8.0, 6.0, 4.0, 3.0, 2.0)


def crab(history: Remembered, clients: str = "acd", **settings: object) -> Crab:
    losses = settings.pop("losses", FALLING)
    layout = settings.pop("layout", LAYOUT)
    return Crab(history=history, clients=tuple(clients), losses=losses, layout=layout, **settings)  # pyright: ignore[reportArgumentType]


def test_with_everything_kept_and_no_rollback_it_is_federaser_bit_for_bit():
    history = remember(quadratics(), "abcde", START, rounds=5, epochs=3)
    ours = crab(history, rounds_kept=1.0, clients_kept=1.0, tolerance=0.0, epochs=3)
    theirs = FedEraser(interval=1, epochs=3, history=history, clients=("a", "c", "d"))
    assert ours.rounds == theirs.rounds == 5
    replay = run(ours, quadratics(), "acd", ours.init(START), rounds=5)
    erased = run(theirs, quadratics(), "acd", theirs.init(START), rounds=5)
    for (one, record), (other, known) in zip(replay, erased, strict=True):
        assert torch.equal(one.params, other.params)
        assert (record.asked, record.client_epochs) == (known.asked, known.client_epochs)


def test_a_window_ends_when_the_loss_has_fallen_by_a_tenth():
    """9 to 8.5 is a fall of 5.6 %, to 8 of 11 %: the window ends. 8 to 7.3 is 8.75 %, to 7.1 11 %. The rest falls by less."""
    losses = (9.0, 8.5, 8.0, 7.3, 7.1, 7.0, 6.9)
    assert cut_windows(losses, range(7), 0.1) == [[0, 1, 2], [3, 4], [5, 6]]
    assert cut_windows(losses, range(7), 0.5) == [[0, 1, 2, 3, 4, 5, 6]]
    assert cut_windows((5.0,), range(1), 0.1) == [[0]]


def test_shares_are_rounded_down_and_leave_at_least_one():
    assert [count_share(0.7, n) for n in (1, 2, 3, 10)] == [1, 1, 2, 7]
    assert count_share(1.0, 5) == 5


def steps_of(*steps: list[float], leaver: list[float] | None = None) -> Remembered:
    """A training from 0 in which a and b both send each step; the leaver sends the same, or its own."""
    models, blocks, w = {}, {}, torch.zeros(2, dtype=torch.float64)
    for t, step in enumerate(steps):
        rows = {
            "a": step,
            "b": step,
            "x": step if leaver is None else [s + e for s, e in zip(step, leaver, strict=True)],
        }
        models[t], blocks[t] = w, [block_of(rows)]
        w = w - blocks[t][0].values.mean(dim=0)
    return Remembered(models, blocks)


ROW = (("weight", (1, 2)),)


def test_of_a_window_the_rounds_that_change_the_model_most_are_kept():
    """A step that is the same in both columns does not change their softmax: rounds 0 and 2 diverge by nothing."""
    history = steps_of([5, 5], [-1, 1], [9, 9], [-2, 2])
    method = crab(history, "ab", losses=(4.0,) * 4, layout=ROW, rounds_kept=0.5, tolerance=0.0)
    assert method._select_rounds() == (3, [3])  # x changed nothing, so the last selected model is clean
    moved = steps_of([5, 5], [-1, 1], [9, 9], [-2, 2], leaver=[0.3, 0.3])
    method = crab(moved, "ab", losses=(4.0,) * 4, layout=ROW, rounds_kept=0.5, tolerance=0.0)
    assert method._select_rounds() == (
        0,
        [1, 3],
    )  # no selected model is clean: from the start of the training


def test_the_divergence_by_hand():
    """softmax(0, 0) = (1/2, 1/2); after a step of (-log 3, 0) it is (3/4, 1/4). KL = 1/2 log(2/3) + 1/2 log 2 = 1/2 log(4/3)."""
    history = steps_of([-float(torch.tensor(3.0).log()), 0.0])
    method = crab(history, "ab", losses=(4.0,), layout=ROW)
    before = history.params(0)
    assert method._measure_divergence(before, before - history.update(0, "a")) == pytest.approx(
        0.5 * float(torch.tensor(4 / 3).log()), rel=1e-6
    )


def test_models_that_momentum_moved_are_compared_as_they_were_stored():
    """In round 1 the clients send nothing, but the model moves on from (1, -1) to (-2, 2): further than from 0 to (1, -1)."""
    history = steps_of([-1, 1], [0, 0], [1, 1])
    history.models[2] = torch.tensor([-2.0, 2.0], dtype=torch.float64)
    method = crab(history, "ab", losses=(4.0,) * 3, layout=ROW, rounds_kept=0.4, tolerance=0.0)
    assert method._select_rounds() == (1, [1])


def test_the_rollback_goes_to_the_last_kept_model_below_the_tolerance():
    """In every round x adds (3, 0) to the sum of three: ‖A(all) - A(a, b)‖ = 1, S[t] = t, S[4] = 4."""
    history = steps_of([1, 2], [2, 1], [1, 3], [3, 1], leaver=[3, 0])
    for tolerance, start in ((0.0, 0), (0.24, 0), (0.25, 1), (0.5, 2), (0.8, 3)):
        method = crab(
            history,
            "ab",
            losses=(4.0,) * 4,
            layout=ROW,
            rounds_kept=1.0,
            tolerance=tolerance,
            clients_kept=1.0,
        )
        assert method._select_rounds() == (start, list(range(start, 4)))
        state = method.init(torch.ones(2, dtype=torch.float64))
        assert torch.equal(state.params, history.params(start))
        assert method.ask(state) is None  # its stored updates were computed at this very model
        told = method.tell(state, ())
        assert torch.equal(told.params, history.params(start) - history.update(start, "a"))


def test_the_clients_that_agree_with_the_step_are_kept_and_leavers_left_out():
    """A(all) = (1, 0): a and x point along it, b is at a right angle and c against it. Of four, three are kept."""
    block = block_of({"a": [2, 0], "b": [0, 1], "c": [-1, 0], "x": [3, -1]})
    history = Remembered({0: torch.zeros(2).double()}, {0: [block]})
    method = crab(history, "abc", losses=(4.0,), layout=ROW, clients_kept=0.75)
    assert method._select_clients(0) == {"a", "b", "x"}
    assert method.init(torch.zeros(2).double()).chosen.tolist() == [[True, True, False]]


def test_a_round_whose_kept_clients_have_all_left_changes_nothing():
    rounds = [block_of({"a": [0, 1], "x": [9, 0]}), block_of({"a": [1, 0], "x": [1, 1]})]
    models = {0: torch.zeros(2).double(), 1: torch.tensor([-4.5, -0.5]).double()}
    history = Remembered(models, dict(enumerate([one] for one in rounds)))
    method = crab(
        history, "a", losses=(4.0, 4.0), layout=ROW, rounds_kept=1.0, clients_kept=0.5, tolerance=0.0
    )
    state = method.init(models[0])
    assert state.chosen.tolist() == [[False], [False]]
    assert method.ask(state) is None
    assert torch.equal(method.tell(state, ()).params, models[0])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"fall": 1}, r"fall is 1; give at least 0 and below 1"),
        ({"rounds_kept": 0}, r"rounds_kept is 0; give a share above 0 and up to 1"),
        ({"clients_kept": 1.1}, r"clients_kept is 1.1; give a share above 0 and up to 1"),
        ({"tolerance": -0.1}, r"tolerance is -0.1; give at least 0 and below 1"),
        ({"epochs": 0}, r"epochs is 0; Crab calibrates by local training"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, says):
    with pytest.raises(ConfigError, match=says):
        Crab(**settings)


def test_a_run_reads_the_losses_of_the_training_and_resumes(tmp_path):
    trained = feduhb.train(
        ragged(),
        4,
        epochs=2,
        batch_size=6,
        lr=0.05,
        engine="loop",
        out=tmp_path / "old",
        keep_history=True,
        show=None,
    )
    method = Crab(epochs=2, rounds_kept=1.0, fall=0.0, tolerance=0.0)
    whole = feduhb.unlearn(trained, ["bee"], method=method, erase_history=False, show=None)
    assert len(whole.rounds) == 4
    assert whole.rounds[0].asked == ()
    asked = {client for record in whole.rounds for client in record.asked}
    assert asked
    assert "bee" not in asked

    def interrupt(record):
        if record.round == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        feduhb.unlearn(trained, ["bee"], method=method, out=tmp_path / "new", show=interrupt)
    new = feduhb.unlearn(trained, ["bee"], method=method, out=tmp_path / "new", resume=True, show=None)
    assert torch.equal(new.params, whole.params)
    assert trained.history is None
    written = json.loads((tmp_path / "new" / "result.json").read_text())["settings"]
    assert set(written) == {"fall", "rounds_kept", "clients_kept", "tolerance", "ratio", "epochs"}
    assert torch.equal(feduhb.open_run(tmp_path / "new", ragged()).params, new.params)


def test_each_stored_update_is_read_once_to_select_rounds_twice_to_select_clients_and_once_to_replay(
    tmp_path, monkeypatch
):
    trained = feduhb.train(
        ragged(), 5, epochs=1, batch_size=6, lr=0.05, engine="loop", out=tmp_path / "old", keep_history=True, show=None
    )  # fmt: skip
    everyone, reads, read = [*ragged().clients], Counter[tuple[int, str]](), DiskHistory.read

    def count(self: DiskHistory, round: int, clients: list[str]):
        for block in read(self, round, clients):
            reads.update((round, client) for client in block.clients)
            yield block

    method = Crab(epochs=1, rounds_kept=0.6, clients_kept=0.5, fall=0.5, tolerance=0.0)
    monkeypatch.setattr(DiskHistory, "read", count)
    for out in (None, tmp_path / "new"):
        reads.clear()
        new = feduhb.unlearn(trained, ["bee"], method=method, out=out, erase_history=False, show=None)
        found = new.method.select()  # pyright: ignore[reportAttributeAccessIssue]
        assert 0 < len(found.rounds) < 5
        expected = Counter({(t, client): 1 for t in range(5) for client in everyone})
        expected.update({(t, client): 2 for t in found.rounds for client in everyone})
        expected.update((t, c) for t, some in zip(found.rounds, found.clients, strict=True) for c in some)
        assert reads == expected


def test_a_selection_is_of_one_history_and_no_setting():
    """Bound to another history, a method selects again."""
    history = remember(quadratics(), "abcde", START, rounds=5, epochs=3)
    method = crab(history, rounds_kept=0.5, tolerance=0.0)
    once = select_once(method)
    assert once.select() == method.select()  # pyright: ignore[reportAttributeAccessIssue]
    assert once.rounds == method.rounds
    assert settings_of(once) == settings_of(method)
    assert get_bound(unbind(once))["selection"] is None
    assert change_method(once, tolerance=0.5).selection is None  # pyright: ignore[reportAttributeAccessIssue]
    one, other = (made.init(START) for made in (method, once))
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(one, other, strict=True))


def test_updates_without_a_recorded_loss_are_refused_before_the_run(tmp_path):
    trained = feduhb.train(
        ragged(), 1, epochs=1, batch_size=6, engine="loop", out=tmp_path / "old", keep_history=True, show=None
    )
    unscored = replace(trained, rounds=tuple(replace(record, scores={}) for record in trained.rounds))
    with pytest.raises(
        ConfigError, match=r"crab cuts the training into windows by its test loss, which this"
    ):
        feduhb.unlearn(unscored, ["bee"], method="crab", show=None)
    assert trained.history is not None
    assert "which this run did not record" in feduhb.api.explain_refusals(unscored, ["bee"])["crab"]
    assert "crab" not in feduhb.api.explain_refusals(trained, ["bee"])
    assert isinstance(next(trained.history.read(0, ["ant"])), Updates)
