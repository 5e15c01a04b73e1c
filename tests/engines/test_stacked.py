"""The stacked engine equals the loop in float64, on both of its paths."""

import functools
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import feduhb
from federations import SIZES, ragged, tensors
from feduhb.core.flat import flatten
from feduhb.data.federation import Examples
from feduhb.engines import Loop, Stacked, make_engine, pick_engine
from feduhb.errors import AnswerError, ConfigError


def train_all(engine, federation, epochs=2, clients=tuple(SIZES), round=3):
    start = flatten(federation.fresh_model())
    blocks = list(engine.train(feduhb.Work(start, epochs), clients, round))
    assert tuple(itertools.chain.from_iterable(block.clients for block in blocks)) == tuple(clients)
    return torch.cat([block.values for block in blocks]), torch.cat([block.weights for block in blocks])


def check_equals_loop(federation, local=None, *, epochs=2, clients=None, block=None, mapped=False):
    """Check that the stacked engine equals the loop; return the engine."""
    clients = clients or tuple(federation.clients)
    engine = Stacked(federation, local, device="cpu", block=block, mapped=mapped)
    slow, slow_weights = train_all(Loop(federation, local), federation, epochs, clients)
    fast, fast_weights = train_all(engine, federation, epochs, clients)
    assert torch.equal(slow_weights, fast_weights)
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-10)
    return engine


@pytest.mark.slow
@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    batch_size=st.integers(1, 50),
    epochs=st.integers(0, 3),
    l2=st.sampled_from([0.0, 0.1]),
    block=st.integers(1, 7),
    mapped=st.booleans(),
)
def test_it_equals_the_loop_on_ragged_federations(sizes, batch_size, epochs, l2, block, mapped):
    clients = {f"c{i}": size for i, size in enumerate(sizes)}
    local = feduhb.Local(batch_size=batch_size, lr=0.1, l2=l2)
    check_equals_loop(ragged(clients), local, epochs=epochs, block=block, mapped=mapped)


class Functional(nn.Module):
    """A chain written by hand, its layers declared in another order than they are used."""

    def __init__(self):
        super().__init__()
        self.head, self.norm, self.body = nn.Linear(100, 3), nn.GroupNorm(2, 4), nn.Conv2d(1, 4, 3)

    def forward(self, x):
        x = functional.relu(self.norm(self.body(x)))
        x = functional.max_pool2d(x, 2).relu()
        return self.head(torch.flatten(x, 1))


class Residual(nn.Module):
    """Not a chain: an input is used twice."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Conv2d(1, 1, 3, padding=1), nn.Linear(144, 3)

    def reset_parameters(self):
        return None

    def forward(self, x):
        return self.head((x + self.body(x)).flatten(1))


LAYERS = {
    "conv": (nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(200, 3)),
    "conv, no bias": (nn.Conv2d(1, 2, 3, bias=False), nn.Flatten(), nn.Linear(200, 3, bias=False)),
    "conv, stride, padding, dilation": (nn.Conv2d(1, 2, 3, 2, 2, 2), nn.Flatten(), nn.Linear(72, 3)),
    "conv, groups": (nn.Conv2d(1, 4, 3), nn.Conv2d(4, 6, (2, 3), groups=2), nn.Flatten(), nn.Linear(432, 3)),
    "relu first": (nn.ReLU(), nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(200, 3)),
    "max pool": (nn.Conv2d(1, 2, 3), nn.MaxPool2d(3, 2, 1), nn.Flatten(), nn.Linear(50, 3)),
    "max pool, ceil": (nn.Conv2d(1, 2, 4), nn.MaxPool2d(2, ceil_mode=True), nn.Flatten(), nn.Linear(50, 3)),
    "average pool": (nn.Conv2d(1, 2, 3), nn.AvgPool2d(2, padding=1), nn.Flatten(), nn.Linear(72, 3)),
    "group norm": (nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(400, 3)),
    "group norm, plain": (nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4, affine=False), nn.Flatten(), nn.Linear(400, 3)),
    "layer norm": (nn.Flatten(), nn.LayerNorm(144), nn.Linear(144, 5), nn.ReLU(), nn.Linear(5, 3)),
    "layer norm of lines": (nn.LayerNorm([12, 12], bias=False), nn.Flatten(), nn.Linear(144, 3)),
    "linear on lines": (nn.Linear(12, 4), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)),
    "flatten in part": (nn.Flatten(2, 3), nn.Linear(144, 4), nn.Flatten(), nn.Linear(4, 3)),
    "softmax regression": (nn.Flatten(), nn.Linear(144, 3)),
}  # fmt: skip


def with_model(model, **changes):
    data = {client: tensors(client, size) for client, size in SIZES.items()}
    return feduhb.Federation(data, tensors("test", 5), model.double(), seed=7, **changes)


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_has_a_stacked_form_that_equals_the_loop(name):
    federation = with_model(nn.Sequential(*LAYERS[name]))
    engine = check_equals_loop(federation, feduhb.Local(batch_size=5, lr=0.1, l2=0.05))
    assert engine.about["why"] == "layer by layer: every layer has a stacked form"


def test_a_chain_written_by_hand_is_found_whatever_the_order_of_its_layers():
    assert "layer by layer" in check_equals_loop(with_model(Functional()), feduhb.Local(batch_size=5)).why


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Residual(), "mapped by torch.func: body is not fed by the layer before it alone"),
        (nn.Sequential(nn.Flatten(), nn.Linear(144, 4), nn.GELU(), nn.Linear(4, 3)), "2 (GELU) has no stacked form"),
        (nn.Sequential(nn.Conv2d(1, 2, 3, padding="same"), nn.Flatten(), nn.Linear(288, 3)), "0 pads with zeros same"),
    ],
)  # fmt: skip
def test_any_other_model_is_mapped_and_the_engine_says_why(model, why):
    engine = check_equals_loop(with_model(model), feduhb.Local(batch_size=5, lr=0.1, l2=0.05), epochs=1)
    assert why in engine.about["why"]


def test_a_layer_used_twice_is_mapped():
    shared = nn.Linear(12, 12)
    engine = check_equals_loop(
        with_model(nn.Sequential(shared, nn.ReLU(), shared, nn.Flatten(), nn.Linear(144, 3)))
    )
    assert "used twice" in engine.why


class Idle(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.idle = nn.Linear(144, 3), nn.Linear(4, 1)

    def forward(self, x):
        return self.used(x.flatten(1))


@pytest.mark.parametrize("l2", [0.0, 0.1])
@pytest.mark.parametrize("epochs", [0, 1])
def test_a_parameter_that_the_model_does_not_use_stays_where_it_is(epochs, l2):
    """Even under l2: the loop's optimizer leaves a parameter without a gradient alone."""
    check_equals_loop(with_model(Idle()), feduhb.Local(l2=l2), epochs=epochs)


@pytest.mark.parametrize("mapped", [False, True])
def test_a_custom_loss_is_weighted_by_example(mapped):
    def squared(outputs, targets):
        return (outputs - functional.one_hot(targets, 3)).square().mean()

    federation = with_model(nn.Sequential(nn.Flatten(), nn.Linear(144, 3)), loss=squared)
    for epochs in (0, 2):
        check_equals_loop(federation, feduhb.Local(batch_size=5, loss=squared), epochs=epochs, mapped=mapped)


@pytest.mark.parametrize(
    "loss",
    [lambda z, y: functional.cross_entropy(z, y, reduction="sum"), lambda z, y: z[y == y.max()].mean()],
)
def test_a_loss_that_is_not_a_mean_over_examples_is_refused(loss):
    with pytest.raises(ConfigError, match="use engine 'pool' or 'loop'"):
        Stacked(ragged(), feduhb.Local(loss=loss), device="cpu")


def test_a_model_that_mixes_the_examples_of_a_batch_is_refused():
    class Mixing(nn.Linear):
        def forward(self, input):
            return super().forward(input.flatten(1) - input.flatten(1).mean(0))

    with pytest.raises(ConfigError, match="or the model mixes them"):
        Stacked(with_model(Mixing(144, 3)), device="cpu")


def test_answers_come_in_the_order_of_the_clients_one_block_at_a_time():
    federation = ragged()
    engine = Stacked(federation, feduhb.Local(batch_size=4), device="cpu", block=2)
    asked = ("elk", "ant", "dog", "bee", "cat")
    blocks = list(engine.train(feduhb.Work(flatten(federation.fresh_model()), 1), asked, 0))
    assert [block.clients for block in blocks] == [("elk", "ant"), ("dog", "bee"), ("cat",)]
    assert [block.weights.tolist() for block in blocks] == [[8, 1], [24, 5], [13]]
    check_equals_loop(federation, feduhb.Local(batch_size=4), clients=asked, block=2)


def test_clients_with_tensors_of_their_own_and_clients_who_share_train_alike():
    x, y = tensors("shared", 30)
    parts = torch.arange(30).split([4, 15, 11])
    whole = {f"c{i}": Examples.of(x, y, rows) for i, rows in enumerate(parts)}
    apart = {f"c{i}": (x[rows], y[rows]) for i, rows in enumerate(parts)}
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 3)).double()
    one, other = (feduhb.Federation(c, tensors("test", 5), model, seed=7) for c in (whole, apart))
    first, second = (
        train_all(Stacked(f, device="cpu", block=2), f, clients=("c0", "c1", "c2"))[0] for f in (one, other)
    )
    torch.testing.assert_close(first, second, rtol=0, atol=1e-14)
    check_equals_loop(one, block=2)


def test_only_a_block_is_ever_held(monkeypatch):
    """Ten thousand clients must cost the memory of one block: nothing is made for those not yet reached."""
    federation = ragged({f"c{i}": 2 for i in range(40)})
    engine = Stacked(federation, device="cpu", block=4)
    trained: list[tuple[str, ...]] = []
    answer = engine._answers
    monkeypatch.setattr(engine, "_answers", lambda w, c, *more: (trained.append(c), answer(w, c, *more))[1])
    stream = engine.train(feduhb.Work(flatten(federation.fresh_model()), 1), tuple(federation.clients), 0)
    assert next(stream).values.shape[0] == 4
    assert len(trained) == 1
    assert engine._way.blocks.runner.network.end().shape[0] == 4


def test_the_block_is_chosen_from_free_memory(monkeypatch):
    federation = ragged({f"c{i}": 2 for i in range(40)}, dtype=torch.float32)
    numbers = flatten(federation.fresh_model()).numel()
    outputs = (
        4 * 10 * 10 * 2 + 4 * 5 * 5 + 6 * 3 * 3 * 2 + 54 + 3
    )  # of conv, relu, pool, conv, relu, flatten, linear
    each = 4 * 4 * (numbers + 64 * outputs)
    for fitting, block in [(1, 1), (3, 3), (1000, 16)]:
        monkeypatch.setattr(
            "feduhb.engines.stacked.choice.count_free_bytes", lambda _, n=fitting: 2 * n * each
        )
        assert Stacked(federation, device="cpu").block == block
    monkeypatch.setattr("feduhb.engines.stacked.choice.count_free_bytes", lambda _: 0)
    assert Stacked(federation, device="cpu").block == 1


def test_two_runs_give_the_same_bits_and_rounds_do_not_leak_into_each_other():
    federation = ragged(dtype=torch.float32)
    used = Stacked(federation, feduhb.Local(batch_size=4), device="cpu")
    train_all(used, federation, 3, round=9)
    train_all(used, federation, 1, clients=("dog", "bee"), round=2)
    fresh = Stacked(federation, feduhb.Local(batch_size=4), device="cpu")
    assert torch.equal(train_all(used, federation)[0], train_all(fresh, federation)[0])


def test_training_leaves_the_model_the_start_and_torchs_random_state_alone():
    federation = ragged()
    start = flatten(federation.fresh_model())
    kept, state = start.clone(), torch.get_rng_state()
    list(Stacked(federation, device="cpu").train(feduhb.Work(start, 1), tuple(SIZES), 0))
    assert torch.equal(start, kept)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(flatten(federation.fresh_model()), kept)


def test_it_describes_itself():
    federation = ragged(dtype=torch.float32)
    engine = Stacked(federation, feduhb.Local(batch_size=9, lr=0.2, l2=0.1), device="cpu", block=2)
    assert engine.about == {
        "name": "stacked", "device": "cpu", "precision": "float32", "block": 2,
        "why": "layer by layer: every layer has a stacked form",
        "batch_size": 9, "lr": 0.2, "loss": "cross_entropy", "l2": 0.1,
    }  # fmt: skip
    assert Stacked(ragged(), device="cpu").about["precision"] == "float64"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"precision": "fp8"}, "there is no precision 'fp8'; choose one of float32, tf32, bf16"),
        ({"precision": "tf32"}, "precision tf32 needs a GPU and a float32 model"),
        ({"block": 0}, "has 0 clients per block; give 1 or more, or 'recorded'"),
        ({"block": True}, "has True clients per block; give 1 or more, or 'recorded'"),
        ({"block": [2]}, r"has \[2\] clients per block; give 1 or more, or 'recorded'"),
        ({"device": "meta"}, "runs on cuda or cpu, not on meta"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        Stacked(ragged(), **{"device": "cpu", **changes})


def test_a_failing_client_is_named_as_closely_as_a_block_can(monkeypatch):
    federation = ragged()
    engine = Stacked(federation, device="cpu", block=3)

    def broken(*_):
        raise RuntimeError("no such thing")

    monkeypatch.setattr(engine._way.blocks.runner, "run", broken)
    with pytest.raises(
        AnswerError,
        match=r"client ant, or another one up to cat, could not train in round 3 \(no such thing\)",
    ):
        train_all(engine, federation)


def test_it_is_made_by_name_with_its_precision():
    federation, local = ragged(dtype=torch.float32), feduhb.Local()
    engine = make_engine("stacked", federation, local)
    assert (engine.about["name"], engine.about["precision"]) == ("stacked", "float32")
    with pytest.raises(ConfigError, match="there is no precision 'fp8'"):
        make_engine("stacked:fp8", federation, local)
    with pytest.raises(ConfigError, match="there is no engine 'pool:tf32'"):
        make_engine("pool:tf32", federation, local)


def test_auto_takes_the_pool_without_a_gpu_and_says_why(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    picked = pick_engine(ragged(), feduhb.Local())
    assert picked.about["name"] == "pool"
    assert picked.why == "there is no GPU here, and it uses every core"


def test_auto_takes_the_loop_where_a_model_cannot_be_stacked(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    made: list[str] = []
    monkeypatch.setattr("feduhb.engines.Loop", lambda *_, device: made.append(device))
    monkeypatch.setattr("feduhb.engines.Stacked", functools.partial(Stacked, device="cpu"))
    loss = functools.partial(functional.cross_entropy, reduction="sum")
    picked = pick_engine(ragged(), feduhb.Local(loss=loss))
    assert made == ["cuda"]
    assert picked.why.startswith("the loss is not the mean over the examples of a batch")


def test_running_out_of_memory_says_which_block_to_try(monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    federation = ragged()
    engine = Stacked(federation, device="cpu", block=4)
    monkeypatch.setattr(engine, "_answers", full)
    with pytest.raises(ConfigError, match=r"ran out with 4 clients at once; give a smaller block: .*block=2"):
        train_all(engine, federation)
