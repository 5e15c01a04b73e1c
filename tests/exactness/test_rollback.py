"""A rollback gives the weights of a training in a federation that never held the leavers, to the last bit."""

from __future__ import annotations

import itertools
import random
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

import feduhb
from federations import small_cnn, tensors
from feduhb.api import train_from
from feduhb.core.checks import parse_size
from feduhb.core.seeds import sample_clients
from feduhb.data.load import FederationSettings
from feduhb.errors import CheckpointError, ConfigError
from feduhb.runs import read_status
from feduhb.runs.config import Config, TrainSettings
from feduhb.runs.folder import RunFolder
from feduhb.runs.kept import list_untouched
from feduhb.runs.schedule import choose_rounds

NAMES = [f"c{i:02d}" for i in range(20)]
ROUNDS = 8
HOW: dict[str, Any] = {
    "epochs": 1, "batch_size": 4, "lr": 0.05, "clients_per_round": 2, "schedule": "decay:0.9", "engine": "loop", "show": None,
}  # fmt: skip


def draw(names=NAMES, **changes) -> feduhb.Federation:
    data = {name: tensors(name, 5) for name in names} | changes
    return feduhb.Federation(data, tensors("test", 20), small_cnn(), seed=3)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("rollback") / "a"
    feduhb.train(draw(), ROUNDS, keep_models="1MB", out=folder, **HOW)
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> feduhb.Run:
    shutil.copytree(trained, tmp_path / "a")
    return feduhb.open_run(tmp_path / "a", draw())


def list_kept(folder: Path) -> list[int]:
    return sorted(int(path.stem[6:]) for path in (folder / "kept-models").iterdir())


def find_client(run: feduhb.Run, first: int) -> str:
    """Return a client that was asked for the first time in this round."""
    before = {client for record in run.rounds[:first] for client in record.asked}
    return next(client for client in run.rounds[first].asked if client not in before)


def test_a_client_that_is_not_sampled_does_not_change_the_sample():
    for t in range(50):
        chosen = sample_clients(1, t, NAMES, 3)
        for leaver in {*NAMES} - {*chosen}:
            assert sample_clients(1, t, [name for name in NAMES if name != leaver], 3) == chosen


@pytest.mark.parametrize("first", [0, 1, 3, 5])
def test_it_equals_a_training_that_never_held_the_leaver(run, tmp_path, first):
    leaver = find_client(run, first)
    new = feduhb.unlearn(run, [leaver], method="rollback", out=tmp_path / "b", show=None)
    never = feduhb.train(draw([name for name in NAMES if name != leaver]), ROUNDS, **HOW)
    assert torch.equal(new.params, never.params)
    assert [r.asked for r in new.rounds] == [r.asked for r in never.rounds]
    assert [r.moved for r in new.rounds] == [r.moved for r in never.rounds]
    assert new.restart_round == first
    assert list_kept(tmp_path / "a") == list(range(1, first + 1))
    assert list_kept(tmp_path / "b") == list(range(1, ROUNDS))
    result = RunFolder(tmp_path / "b").result()
    assert result.get("restart_round", 0) == first
    assert result["client_rounds"] == 2 * (ROUNDS - first)
    assert feduhb.open_run(tmp_path / "b", draw()).restart_round == first


def test_who_was_never_asked_leaves_the_model_as_it_is(run, tmp_path):
    asked = {client for record in run.rounds for client in record.asked}
    leaver = next(name for name in NAMES if name not in asked)
    new = feduhb.unlearn(run, [leaver], method="rollback", out=tmp_path / "b", show=None)
    assert torch.equal(new.params, run.params)
    assert torch.equal(
        new.params, feduhb.train(draw([n for n in NAMES if n != leaver]), ROUNDS, **HOW).params
    )
    assert RunFolder(tmp_path / "b").result()["client_rounds"] == 0


def test_rows(run, tmp_path):
    leaver = find_client(run, 3)
    new = feduhb.unlearn(run, {leaver: [0, 2]}, method="rollback", out=tmp_path / "b", show=None)
    x, y = tensors(leaver, 5)
    never = feduhb.train(draw(**{leaver: (x[[1, 3, 4]], y[[1, 3, 4]])}), ROUNDS, **HOW)
    assert torch.equal(new.params, never.params)
    assert new.restart_round == 3


@pytest.mark.parametrize("order", [(2, 5), (5, 2)])
def test_two_requests_one_after_the_other_equal_one_for_both(run, tmp_path, order):
    one, other = (find_client(run, first) for first in order)
    first = feduhb.unlearn(run, [one], method="rollback", out=tmp_path / "b", show=None)
    second = feduhb.unlearn(first, [other], method="rollback", out=tmp_path / "c", show=None)
    rest = [name for name in NAMES if name not in {one, other}]
    assert torch.equal(second.params, feduhb.train(draw(rest), ROUNDS, **HOW).params)
    assert second.restart_round > 0


def test_killed_and_resumed_it_is_the_same(run, tmp_path):
    leaver = find_client(run, 3)

    def kill(record):
        if record.round == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        feduhb.unlearn(run, [leaver], method="rollback", out=tmp_path / "b", show=kill)
    again = feduhb.unlearn(run, [leaver], method="rollback", out=tmp_path / "b", show=None, resume=True)
    assert torch.equal(
        again.params, feduhb.train(draw([n for n in NAMES if n != leaver]), ROUNDS, **HOW).params
    )


def test_status_knows_kept_models(run):
    leaver = find_client(run, 3)
    (found,) = read_status(run.folder, leaver).runs
    parts = {remnant.part: remnant.rounds for held in found.holds for remnant in held.remnants}
    assert parts["kept models"] == ROUNDS - 1 - 3


def test_the_budget_is_never_exceeded(tmp_path):
    sizes = []

    def look(_):
        places = (tmp_path / "a" / "kept-models").glob("*")
        sizes.append(sum(path.stat().st_size for path in places))

    feduhb.train(draw(), ROUNDS, keep_models="12kB", out=tmp_path / "a", **{**HOW, "show": look})
    assert 0 < max(sizes) <= 12000
    with pytest.raises(ConfigError, match=r"one model takes [0-9,]+ bytes; give at least that"):
        feduhb.train(draw(), ROUNDS, keep_models=100, out=tmp_path / "b", **HOW)


def test_a_training_whose_rounds_ask_everybody_keeps_no_models_and_says_so_before_it_begins(tmp_path):
    words = r"^keep_models helps only where rounds sample clients: .*; give clients_per_round, fewer than there are clients, or "
    for count in (None, len(NAMES)):
        with pytest.raises(ConfigError, match=words):
            feduhb.train(
                draw(), ROUNDS, keep_models="1MB", out=tmp_path / "a", **{**HOW, "clients_per_round": count}
            )
    settings = TrainSettings(rounds=1, clients_per_round=4, keep_models="1MB")
    with pytest.raises(ConfigError, match=words):
        train_from(
            Config(federation=FederationSettings(data="digits", clients=4), train=settings), tmp_path / "a"
        )
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("how", ["damaged", "another"])
def test_a_kept_model_that_is_not_the_one_is_named_and_an_earlier_one_is_taken_without_it(run, tmp_path, how):
    leaver, place = find_client(run, 3), tmp_path / "a" / "kept-models" / "after-000003.safetensors"
    place.write_bytes(b"x" if how == "damaged" else place.with_name("after-000002.safetensors").read_bytes())
    with pytest.raises(CheckpointError) as error:
        feduhb.unlearn(run, [leaver], method="rollback", out=tmp_path / "b", show=None)
    assert str(error.value) == (
        f"the kept model {place} is damaged, of another model, or not the one after 3 rounds; restore it, or delete it: a rollback "
        "then takes an earlier one"
    )
    place.unlink()
    new = feduhb.unlearn(run, [leaver], method="rollback", out=tmp_path / "b", show=None)
    assert new.restart_round == 2


def expect_redone(rounds, kept, share):
    """Return E of `feduhb.runs.schedule`: the rounds that a rollback for one random client redoes, in the mean."""
    never = (1 - share) ** rounds
    total, before = rounds * (1 - never), 0
    for t in sorted(kept):
        total -= (t - before) * ((1 - share) ** t - never)
        before = t
    return total


def test_the_schedule_is_the_best_of_all():
    rng = random.Random(1)
    for _ in range(60):
        rounds, count, share = (
            rng.randint(1, 9),
            rng.randint(1, 5),
            rng.choice([0.01, 0.2, 0.9, rng.random()]),
        )

        def redo(kept, rounds=rounds, share=share):
            last = [max([0, *(s for s in kept if s <= f)]) for f in range(rounds)]
            return sum(share * (1 - share) ** f * (rounds - s) for f, s in enumerate(last))

        found = choose_rounds(rounds, count, share)
        every = (kept for k in range(count + 1) for kept in itertools.combinations(range(1, rounds), k))
        assert len(found) <= count
        assert redo(found) == pytest.approx(expect_redone(rounds, found, share))
        assert redo(found) <= min(map(redo, every)) + 1e-12


def test_with_every_model_kept_the_redone_share_is_the_formula():
    """Each of 1,000 clients leaves once, with 10 sampled in each of 100 rounds.

    The mean over all clients varies from seed to seed by a standard deviation of 0.0035, so the mean of five seeds varies by
    0.0016. The tolerance is three times that. One round more to redo for everybody who was asked would change it by 0.0063.
    """
    clients, rounds, q = [f"c{i:04d}" for i in range(1000)], 100, 0.01
    shares = []
    for seed in range(5):
        asked = [sample_clients(seed, t, clients, 10) for t in range(rounds)]
        restarts = (max([0, *list_untouched(range(1, rounds), asked, [leaver])]) for leaver in clients)
        shares.append(statistics.fmean(1 - restart / rounds for restart in restarts))
    formula = 1 - (1 - q) * (1 - (1 - q) ** rounds) / (q * rounds)
    assert statistics.fmean(shares) == pytest.approx(formula, abs=0.005)


@pytest.mark.parametrize(
    ("text", "bytes"), [("1GiB", 2**30), ("500MB", 500_000_000), ("1.5 kB", 1500), (7, 7), ("12", 12)]
)
def test_sizes(text, bytes):
    assert parse_size(text) == bytes


@pytest.mark.parametrize("bad", ["", "many", "-1", True, 1.5])
def test_bad_sizes(bad):
    with pytest.raises(ConfigError, match="is not a size"):
        parse_size(bad)


@pytest.mark.slow
@pytest.mark.parametrize("is_forged", [False, True])
def test_an_audit_judges_the_kept_model(run, tmp_path, is_forged):
    if is_forged:  # a model that knows the leaver, in the place of the one before it
        from feduhb.methods.retrain import Plain
        from feduhb.runs.checkpoint import save_state

        save_state(tmp_path / "a" / "kept-models" / "after-000003.safetensors", Plain(run.params), 3)
    new = feduhb.unlearn(run, [find_client(run, 3)], method="rollback", out=tmp_path / "b", show=None)
    audit = feduhb.audit(new, run, canaries=0, relearn=0, show=None)
    assert audit.exactness is not None
    assert {check.name: check.identical for check in audit.exactness.checks}["never"] is not is_forged
    assert any("kept after 3 rounds" in note for note in audit.notes)


@pytest.mark.slow
def test_shadows_of_an_audit_keep_no_models_nor_does_a_world_in_which_every_round_asks_everybody(tmp_path):
    held = {name: tensors(f"held {name}", 6) for name in NAMES}
    how = {**HOW, "clients_per_round": len(NAMES) - 1}
    run = feduhb.train(draw().replace(held_out=held), 3, keep_models="1MB", out=tmp_path / "a", **how)
    leaver = find_client(run, 1)
    new = feduhb.unlearn(run, [leaver], method="rollback", out=tmp_path / "b", show=None)
    audit = feduhb.audit(new, run, canaries=0, relearn=0, shadows=4, show=None)
    assert audit.exactness is not None
    assert audit.exactness.exact


def test_other_settings_than_the_trainings_are_refused(run):
    given: list[dict[str, Any]] = [{"keep": "best"}, {"stop": feduhb.distance_stop()}]
    for more in given:
        with pytest.raises(ConfigError, match="rollback repeats the training, with its stop rule"):
            feduhb.unlearn(run, ["c00"], method="rollback", **more)
    same = feduhb.unlearn(
        run, ["c00"], method="rollback", rounds=ROUNDS, stop=feduhb.never, erase_history=False
    )
    assert len(same.rounds) == ROUNDS


def test_a_training_that_stopped_is_not_repeated_without_its_rule():
    rule = feduhb.distance_stop(10.0, window=1, first=3)
    stopped = feduhb.train(draw(), ROUNDS, stop=rule, **HOW)
    with pytest.raises(ConfigError, match="rollback repeats the training, with its stop rule"):
        feduhb.unlearn(stopped, ["c00"], method="rollback", stop=feduhb.never)
    assert feduhb.unlearn(stopped, ["c00"], method="rollback", show=None).stop == rule


def test_a_comparison_of_fewer_rounds_says_that_a_rollback_repeats_all(run, capsys):
    runs = feduhb.compare(run, ["c00"], ["retrain", "rollback"], rounds=2, show=None)
    assert [len(one.rounds) for one in runs.values()] == [2, ROUNDS]
    assert "rollback repeats all 8 rounds of the training, not 2" in capsys.readouterr().err


def test_a_class(run, tmp_path):
    new = feduhb.unlearn(run, "class:1", method="rollback", out=tmp_path / "b", show=None)
    kept = {name: (x[y != 1], y[y != 1]) for name in NAMES for x, y in [tensors(name, 5)] if (y != 1).any()}
    x, y = tensors("test", 20)
    never = feduhb.Federation(kept, (x[y != 1], y[y != 1]), small_cnn(), seed=3)
    assert torch.equal(new.params, feduhb.train(never, ROUNDS, **HOW).params)


def test_statistics_of_batch_norm_are_rolled_back_too(tmp_path):
    net = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(tensors("a", 1)[0].numel(), 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3)
    ).double()  # fmt: skip

    def make(names):
        data = {name: tensors(name, 5) for name in names}
        return feduhb.Federation(data, tensors("test", 20), net, seed=3)

    run = feduhb.train(make(NAMES), ROUNDS, keep_models="1MB", out=tmp_path / "a", **HOW)
    leaver = find_client(run, 4)
    new = feduhb.unlearn(run, [leaver], method="rollback", out=tmp_path / "b", show=None)
    never = feduhb.train(make([name for name in NAMES if name != leaver]), ROUNDS, **HOW)
    assert torch.equal(new.params, never.params)
    assert new.restart_round == 4


def test_a_resumed_training_keeps_the_same_models(trained, tmp_path):
    class StopError(Exception):
        pass

    def stop(record):
        if record.round == 4:
            raise StopError

    with pytest.raises(StopError):
        feduhb.train(draw(), ROUNDS, keep_models="1MB", out=tmp_path / "a", **{**HOW, "show": stop})
    feduhb.train(draw(), ROUNDS, keep_models="1MB", out=tmp_path / "a", resume=True, **HOW)
    assert list_kept(tmp_path / "a") == list_kept(trained)
    for one in (trained / "kept-models").iterdir():
        assert (tmp_path / "a" / "kept-models" / one.name).read_bytes() == one.read_bytes()


def test_retiring_the_old_run_deletes_its_kept_models(run, tmp_path):
    new = feduhb.unlearn(run, [find_client(run, 3)], method="rollback", out=tmp_path / "b", show=None)
    assert list_kept(tmp_path / "a")
    feduhb.retire(run, replaced_by=new, unaudited="a test")
    assert not (tmp_path / "a" / "kept-models").exists()
