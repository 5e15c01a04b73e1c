"""An attacker with all that is left in a run folder wants a leaver's update back.

Round t turned w[t] into w[t+1] = w[t] - Σ (n_c / N) u_c, so from two models and the others' updates

    u_leaver = (N (w[t] - w[t+1]) - Σ_others n_c u_c) / n_leaver

It knows w[0] from the seed, w[T] from the checkpoint, every client's weight, and reads every file.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import feduhb
from federations import SIZES, ragged, tensors
from feduhb.core.flat import flatten
from feduhb.runs.history import DiskHistory

ROUNDS, LEAVER = 6, "cat"
OTHERS = tuple(client for client in SIZES if client != LEAVER)
EXAMPLES = {client: float(size) for client, size in SIZES.items()}
Known = dict[tuple[int, str], Tensor]  # (round, client) -> update


def labelled() -> feduhb.Federation:
    """Every client has its own labels, so that updates differ."""
    data = {}
    for label, (client, size) in enumerate(SIZES.items()):
        x, y = tensors(client, size)
        data[client] = (x, torch.full_like(y, label % 3))
    return ragged(**data)


def trained(out: Path) -> feduhb.Run:
    """Everyone in all rounds."""
    return feduhb.train(
        labelled(), ROUNDS, epochs=2, batch_size=4, lr=0.05, out=out, keep_history=True, engine="loop"
    )  # fmt: skip


def cosine(one: Tensor, other: Tensor) -> float:
    return abs(float(torch.nn.functional.cosine_similarity(one, other, dim=0)))


def true_updates(history: DiskHistory) -> list[Tensor]:
    return [next(history.read(t, [LEAVER])).values[0] for t in history.rounds]


def found_in(run: feduhb.Run, *, withheld: bool = True) -> tuple[dict[int, Tensor], Known]:
    """Every model by its round and every update that the folder still gives away, by files alone."""
    assert run.folder is not None
    models = {0: flatten(run.federation.fresh_model())}
    models[ROUNDS] = load_file(run.folder / "state.safetensors")["params"]
    updates: Known = {}
    history = DiskHistory(run.folder / "history")
    for place in sorted((run.folder / "history").glob("0*")):
        t = int(place.name)
        models[t] = load_file(place / "params.safetensors")["params"]
        rows = [
            row for file in sorted(place.glob("block-*")) for row in load_file(file)["values"]
        ]  # markers may be gone, blocks are in order
        for client, row in zip(history.clients(t), rows, strict=True):
            if not (withheld and client == LEAVER):
                updates[t, client] = row
    return models, updates


def by_subtraction(models: dict[int, Tensor], updates: Known, round: int) -> Tensor:
    total = sum(EXAMPLES.values())
    others = torch.stack([EXAMPLES[c] * updates[round, c] for c in OTHERS]).sum(dim=0)
    return (total * (models[round] - models[round + 1]) - others) / EXAMPLES[LEAVER]


def best_guess(models: dict[int, Tensor], updates: Known, truth: list[Tensor]) -> float:
    """The best cosine with any of the leaver's updates of any vector that can be formed of what is left:
    the difference of any two models, less the weighted updates of any round or none; or an update itself."""
    rounds = sorted({t for t, _ in updates})
    shares = [torch.zeros_like(truth[0])] + [
        torch.stack([EXAMPLES[c] * u for (t, c), u in updates.items() if t == past]).sum(dim=0)
        / sum(EXAMPLES.values())
        for past in rounds
    ]
    moves = [models[a] - models[b] for a, b in itertools.permutations(models, 2)]
    candidates = [move - share for move in moves for share in shares] + list(updates.values())
    return max(cosine(candidate, u) for candidate in candidates for u in truth)


@pytest.fixture(scope="module")
def before(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("attack") / "run"
    trained(folder)
    return folder


def test_before_forgetting_the_attack_succeeds(before):
    run = feduhb.open_run(before, labelled())
    assert run.history is not None
    truth = true_updates(run.history)
    models, updates = found_in(run)
    assert not any(client == LEAVER for _, client in updates)
    assert sorted(models) == list(range(ROUNDS + 1))
    for t in range(ROUNDS):
        assert cosine(by_subtraction(models, updates, t), truth[t]) > 0.99
    assert best_guess(models, updates, truth) > 0.99


def test_deleting_only_the_leavers_own_rows_would_not_do(before):
    """The same with the leaver's rows withheld and two rounds apart: it is the models that give it away."""
    run = feduhb.open_run(before, labelled())
    assert run.history is not None
    models, updates = found_in(run)
    kept = {t: w for t, w in models.items() if t in (2, 3)}
    assert best_guess(kept, updates, true_updates(run.history)) > 0.99


@pytest.mark.parametrize("method", ["feduhb", "federaser", "fedrecover"])
def test_after_an_erasure_it_fails(tmp_path, method):
    run = trained(tmp_path / "run")
    assert run.history is not None
    truth = true_updates(run.history)
    chosen = {
        "feduhb": feduhb.FedUHB(epochs=1),
        "federaser": feduhb.FedEraser(epochs=1),
        "fedrecover": feduhb.FedRecover(warmup=2, buffer=1, epochs=1, final=1),
    }[method]
    feduhb.unlearn(run, [LEAVER], method=chosen, rounds=2)
    models, updates = found_in(run, withheld=False)
    assert sorted(models) == [0, ROUNDS]
    assert updates == {}
    assert best_guess(models, updates, truth) < 0.9
    everything = b"".join(p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file())
    for u in truth:
        assert u[:4].numpy().tobytes() not in everything


def test_when_it_joined_late_the_rounds_before_help_nobody(tmp_path):
    """Rounds 0 to k-1 stay, and with them every model up to w[k]; of the leaver's own rounds nothing does."""
    run = feduhb.train(
        labelled(), ROUNDS, epochs=2, batch_size=4, lr=0.05, clients_per_round=3, out=tmp_path / "run",
        keep_history=True, engine="loop",
    )  # fmt: skip
    history = run.history
    assert history is not None
    truth = [
        next(history.read(t, [LEAVER])).values[0] for t in range(ROUNDS) if LEAVER in run.rounds[t].asked
    ]
    assert LEAVER in run.rounds[2].asked
    history.forget([LEAVER])
    assert history.rounds == [0, 1]
    models, updates = found_in(run, withheld=False)
    there = history.clients(1)
    step = torch.stack([EXAMPLES[c] * updates[1, c] for c in there]).sum(dim=0)
    models[2] = models[1] - step / sum(EXAMPLES[c] for c in there)
    assert sorted(models) == [0, 1, 2, ROUNDS]
    assert best_guess(models, updates, truth) < 0.9


@pytest.mark.parametrize("final", [0, 2])
def test_what_fedrecover_leaves_in_its_own_folder_does_not_give_it_away(tmp_path, final):
    """Its pairs are s = ŵ[t] - w[t] and y = û[t] - u[t]: to one who can train with the others again they are the old
    models and updates. Two of them in a row, and the leaver follows by subtraction. So they must go with the history."""
    run = trained(tmp_path / "run")
    assert run.history is not None
    truth = true_updates(run.history)
    warmup = 3 if final else ROUNDS
    method = feduhb.FedRecover(warmup=warmup, buffer=2, correction=0, final=final, epochs=2)
    done = feduhb.unlearn(run, [LEAVER], method=method, out=tmp_path / "new")
    assert run.history is None
    assert done.history is None
    left = load_file(tmp_path / "new" / "state.safetensors")
    assert set(left) == {"params"}
    assert torch.equal(left["params"], done.params)
    # the old run's last model is no part of this: what differs between it and a model without the leaver is the leaver,
    # whatever the method, which is why the old folder must be deleted in the end
    models = {0: flatten(run.federation.fresh_model()), ROUNDS: left["params"]}
    assert best_guess(models, {}, truth) < 0.9


def test_a_fedrecover_that_was_killed_before_its_end_drops_its_pairs_when_resumed(tmp_path):
    run = trained(tmp_path / "run")
    method = feduhb.FedRecover(warmup=3, buffer=2, correction=0, final=2, epochs=2)

    def kill(record: feduhb.Round) -> None:
        if record.round == ROUNDS - 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        feduhb.unlearn(run, [LEAVER], method=method, out=tmp_path / "new", show=kill)
    assert "s" in load_file(tmp_path / "new" / "state.safetensors")
    assert run.history is not None
    feduhb.unlearn(run, [LEAVER], method=method, out=tmp_path / "new", resume=True)
    assert set(load_file(tmp_path / "new" / "state.safetensors")) == {"params"}
    assert run.history is None
