"""Kinds of models, losses and optimisers train alike on every engine: the pool and the stacked engine equal the loop."""

import pytest
import torch
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st
from torch import nn

import feduhb
from feduhb.core.flat import flatten
from feduhb.engines import Loop, Pool, Stacked
from feduhb.engines.stacked import runner
from feduhb.engines.stacked.runner import Schedule
from feduhb.errors import ConfigError
from kinds import (  # fmt: skip
    BATCH,
    DRAW,
    KINDS,
    SIZES,
    draw,
    draw_labels,
    images,
    make_federation,
    make_local,
    make_mlp,
    shift_and_flip,
    train_all,
    train_on_loop,
)

ENGINES = {
    "pool": lambda federation, local: Pool(federation, local, threads=2),
    "stacked": lambda federation, local: Stacked(federation, local, device="cpu"),
    "stacked in blocks": lambda federation, local: Stacked(federation, local, device="cpu", block=2),
    "recorded": lambda federation, local: Stacked(federation, local, device="cpu", block="recorded"),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_trains_alike_on_every_engine(kind, engine):
    federation = make_federation(kind)
    made = ENGINES[engine](federation, make_local(kind))
    torch.testing.assert_close(train_all(made, federation), train_on_loop(kind), rtol=0, atol=1e-9)
    assert made.about.get("joined_last_batch") == Loop(federation, make_local(kind)).about.get(
        "joined_last_batch"
    )


@pytest.mark.parametrize("norm", [False, True])
@limits(max_examples=8, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(2, 20), min_size=1, max_size=4),
    batch_size=st.integers(2, 9),
    epochs=st.integers(1, 3),
    block=st.integers(1, 4),
    optimizer=st.sampled_from([{"momentum": 0.9}, {"optimizer": "adam"}, {"optimizer": "adamw"}, {}]),
    weight_decay=st.sampled_from([0.0, 0.1]),
    clip_norm=st.sampled_from([None, 0.3]),
    schedule=st.sampled_from(["constant", "linear", "cosine", "decay:0.5"]),
    proximal=st.sampled_from([0.0, 0.2]),
)
def test_any_optimiser_equals_the_loop_on_ragged_federations(
    norm, sizes, batch_size, epochs, block, optimizer, **others
):
    DRAW.manual_seed(1)
    data = {f"c{i}": (draw(size, 5), draw_labels(size)) for i, size in enumerate(sizes)}
    layers = nn.Linear(5, 6, bias=False), nn.BatchNorm1d(6) if norm else nn.Tanh(), nn.Dropout(0.2)
    model = nn.Sequential(*layers, nn.Linear(6, 3)).double()
    federation = feduhb.Federation(data, (draw(4, 5), draw_labels(4)), model, seed=3)
    local = feduhb.Local(batch_size=batch_size, lr=0.05, **optimizer, **others)
    slow, fast = (
        train_all(engine, federation, epochs)
        for engine in (Loop(federation, local), Stacked(federation, local, device="cpu", block=block))
    )
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", ["resnet, momentum, decay", "adamw, clipping, schedule", "two inputs", "dropout"])  # fmt: skip
def test_in_float32_they_differ_by_rounding_alone(kind):
    federation, local = make_federation(kind, torch.float32), make_local(kind)
    engines = Loop(federation, local), Stacked(federation, local, device="cpu")
    slow, fast = (train_all(engine, federation) for engine in engines)
    assert (fast - slow).norm() <= 1e-4 * slow.norm()


@pytest.mark.parametrize("kind", ["resnet, momentum, decay", "weights of classes", "adamw, clipping, schedule", "augmentation"])  # fmt: skip
def test_clients_that_finished_stay_as_they_are_in_the_stack(kind, monkeypatch):
    """As on a GPU, where they stay in the stack to need fewer graphs."""
    plan = runner.plan_phases
    monkeypatch.setattr(runner, "plan_phases", lambda totals, _waste: plan(totals, 1.0))
    federation = make_federation(kind)
    engine = Stacked(federation, make_local(kind), device="cpu")
    first = train_all(engine, federation)
    torch.testing.assert_close(first, train_on_loop(kind), rtol=0, atol=1e-9)
    train_all(engine, federation, epochs=1, round=5)
    assert torch.equal(train_all(engine, federation), first)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("resnet", "its norms gather statistics"),
        ("dropout", "dropout draws random numbers"),
        ("frozen backbone", "a part of the model is frozen"),
        ("two inputs", "the inputs are several tensors"),
        ("momentum, proximal", "a step is more than plain SGD"),
        ("augmentation", "its norms gather statistics"),
    ],
)
def test_all_but_plain_models_are_mapped_and_the_engine_says_why(kind, why):
    engine = Stacked(make_federation(kind), make_local(kind), device="cpu")
    assert engine.about["why"] == f"mapped by torch.func: {why}"


def test_the_block_counts_the_moments_of_the_optimiser(monkeypatch):
    federation = make_federation("squares")
    plain, adam = feduhb.Local(loss=federation.loss), feduhb.Local(loss=federation.loss, optimizer="adam")
    monkeypatch.setattr("feduhb.engines.stacked.choice.count_free_bytes", lambda _: 1 << 16)
    engine = Stacked(federation, plain, device="cpu")
    each = 8 * 4 * (flatten(federation.fresh_model()).numel() + 64 * engine._setup.trial.outputs)
    more = 8 * 2 * flatten(federation.fresh_model()).numel()
    monkeypatch.setattr("feduhb.engines.stacked.choice.count_free_bytes", lambda _: 2 * 4 * each)
    assert Stacked(federation, plain, device="cpu").block == 4
    assert Stacked(federation, adam, device="cpu").block == 4 * each // (each + more) < 4


@pytest.mark.parametrize("kind", ["frozen backbone", "squares", "weights of classes"])
def test_full_batch_gradients_are_alike_in_chunks_and_in_one(kind, monkeypatch):
    """Chunks of a loss with weights of classes count by the sum of their weights."""
    federation = make_federation(kind)
    if kind == "weights of classes":
        federation = federation.replace(model=make_mlp().double())
    local = make_local(kind)
    whole = train_all(Loop(federation, local), federation, epochs=0)
    monkeypatch.setattr("feduhb.engines.batches.CHUNK", 3)
    for maker in (Loop, Pool, Stacked):
        torch.testing.assert_close(
            train_all(maker(federation, local), federation, epochs=0), whole, rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("maker", [Loop, Pool])
def test_chunks_with_targets_that_are_left_out_count_by_the_others(maker, monkeypatch):
    x, y = images(9), draw_labels(9)
    y[[1, 3, 4, 5]] = -100  # all of the second chunk
    federation = feduhb.Federation({"a": (x, y)}, (x, y), make_mlp().double())
    whole = train_all(Loop(federation), federation, epochs=0)
    monkeypatch.setattr("feduhb.engines.batches.CHUNK", 3)
    torch.testing.assert_close(train_all(maker(federation), federation, epochs=0), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("maker", [Loop, Pool, Stacked])
@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("resnet", "the model has BatchNorm, which depends on batches"),
        ("dropout", "the model has dropout, which is random"),
        ("augmented", "batches are augmented, which is random"),
        ("instance", "layer 0 of the model gathers statistics of batches"),
    ],
)
def test_full_batch_gradients_of_what_depends_on_batches_are_refused(kind, why, maker):
    federation = make_federation(kind if kind in KINDS else "squares")
    if kind == "augmented":
        federation = federation.replace(augment=shift_and_flip)
    if kind == "instance":
        layers = nn.InstanceNorm2d(1, track_running_stats=True), nn.Flatten(), nn.Linear(64, 2)
        federation = federation.replace(model=nn.Sequential(*layers).double())
    with pytest.raises(
        ConfigError, match=f"epochs=0 asks for full-batch gradients, but {why}; give epochs of"
    ):
        maker(federation).train(feduhb.Work(flatten(federation.fresh_model()), 0), ("bee",), 0)


class Doubled(nn.BatchNorm1d):
    def forward(self, input):
        return 2 * super().forward(input)


def mix(x, numbers):
    return x + numbers[:, 0].view(-1, 1, 1, 1) * x.flip(0)


def shift_in_place(x, numbers):
    chosen = numbers[:, 0] < 0.5
    x[chosen] = x[chosen].flip(-1)
    return x


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"model": nn.Sequential(nn.Flatten(), nn.Linear(64, 2), Doubled(2)).double()},
            "torch.func cannot map",
        ),
        ({"augment": mix}, "or the model mixes them"),
        ({"augment": shift_in_place}, "torch.func cannot map this model, loss or augmentation"),
    ],
)
def test_what_a_stack_would_train_differently_is_refused(changes, why):
    federation = make_federation("squares").replace(**changes)
    with pytest.raises(ConfigError, match=why):
        Stacked(federation, device="cpu")


def test_the_schedule_has_the_loops_batches_keys_and_rates():
    federation, local = make_federation("resnet"), make_local("resnet, momentum, decay")
    local = feduhb.Local(batch_size=BATCH, schedule="cosine", optimizer="adam", augment=shift_and_flip)
    batches = Loop(federation, local)._batches
    assert batches.joined == ("bee", "cat", "elk")
    schedule = Schedule.of(list(SIZES), list(SIZES.values()), BATCH, 2, joins=True)
    rows = [torch.arange(count) + 50 for count in schedule.counts]
    order = torch.empty(len(SIZES), schedule.totals[0], schedule.size, dtype=torch.long)
    schedule.pad(order, rows)
    for epoch in range(2):
        schedule.draw(order, rows, 7, 3, epoch)
    shares, keys, rates = schedule.shares(torch.float64), schedule.keys(7, 3), schedule.rates(local, 3)
    assert schedule.size == BATCH + 1
    for row, (client, count) in enumerate(zip(schedule.clients, schedule.counts, strict=True)):
        steps = list(batches.draw(count, 2, 7, client, 3))
        assert len(steps) == schedule.totals[row]
        for number, step in enumerate(steps):
            size = len(step.positions)
            assert torch.equal(order[row, number, :size], step.positions + 50)
            assert shares[row, number].tolist() == [1 / size] * size + [0] * (BATCH + 1 - size)
            assert keys[row, number] == step.key
            assert rates[row, number].tolist() == pytest.approx(
                [local.lr * step.scale, local.lr * step.scale / (1 - 0.9 ** (number + 1)), (1 - 0.999 ** (number + 1)) ** 0.5]
            )  # fmt: skip
        assert not shares[row, len(steps) :].any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_trains_every_kind_like_the_loop(kind):
    federation = make_federation(kind)
    engine = Stacked(federation, make_local(kind), device="cuda", block=3)
    torch.testing.assert_close(train_all(engine, federation), train_on_loop(kind), rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", ["resnet", "dropout of channels"])
def test_runs_on_the_stacked_engine_end_at_the_weights_of_the_loop(kind):
    """Over rounds, with the server's average of statistics; and without a client."""
    runs = [
        feduhb.train(
            make_federation(kind), 2, epochs=1, batch_size=BATCH, lr=0.05, optimizer="adamw", clip_norm=1.0, engine=engine
        )
        for engine in ("loop", "stacked")
    ]  # fmt: skip
    torch.testing.assert_close(runs[0].params, runs[1].params, rtol=0, atol=1e-9)
    runs = [feduhb.unlearn(run, "cat", method="retrain", rounds=2) for run in runs]
    torch.testing.assert_close(runs[0].params, runs[1].params, rtol=0, atol=1e-9)
