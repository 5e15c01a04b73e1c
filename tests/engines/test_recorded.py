"""Clients whose steps are recorded and replayed train like the loop: the same bits in the precision of the model."""

import contextlib
import functools
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

import feduhb
from federations import SIZES, ragged, tensors
from feduhb.core.local import move_loss
from feduhb.core.modules import prepare_training
from feduhb.core.tasks import Precondition
from feduhb.engines import Loop, Stacked, pick_engine
from feduhb.engines.batches import Batches
from feduhb.engines.stacked import recorded
from feduhb.engines.stacked.data import ExampleStore
from feduhb.engines.stacked.recorded import Lane, Recorder
from feduhb.engines.triton import HAS_TRITON
from feduhb.engines.triton.group_norm import ChannelsLastGroupNorm
from feduhb.errors import AnswerError, ConfigError
from feduhb.models import resnet18
from independent import FAST, make_examples, make_independent
from kinds import KINDS, make_federation, make_local, train_all, train_on_loop

gpu = pytest.mark.skipif(not (torch.cuda.is_available() and HAS_TRITON), reason="needs a GPU and Triton")
PLAIN = [kind for kind in KINDS if make_local(kind).is_plain]
SUM = functools.partial(functional.cross_entropy, reduction="sum")


@pytest.mark.parametrize("kind", PLAIN)
def test_plain_steps_are_those_of_the_loop_bit_for_bit(kind):
    federation = make_federation(kind)
    engine = Stacked(federation, make_local(kind), device="cpu", block="recorded")
    assert torch.equal(train_all(engine, federation), train_on_loop(kind))
    assert engine.about["block"] == "recorded"
    assert engine.about["why"] == "recorded client by client, as given"


@pytest.mark.parametrize("lanes", [1, 2, 7])
def test_the_number_of_lanes_changes_no_bit(lanes):
    federation, local = make_federation("resnet"), make_local("resnet")
    module, cpu = prepare_training(federation.fresh_model()), torch.device("cpu")
    recorder = Recorder(module, local, Batches.of(module, local, federation), cpu, "float32", lanes)
    start, clients = feduhb.core.flat.flatten(module), tuple(federation.clients)
    store = ExampleStore(federation.clients, cpu)
    found = start - recorder.run(clients, store, start, 2, federation.seed, 3)
    assert torch.equal(found, train_on_loop("resnet"))
    assert len(recorder.lanes) == min(lanes, len(clients))


class Remembering(nn.Module):
    """Adds up what it sees in batches that are larger than those of a trial."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(144, 3)
        self.register_buffer("seen", torch.zeros(3, dtype=torch.float64))
        self.register_buffer("ones", torch.ones(1).expand(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.head(x.flatten(1))
        if self.training and len(x) > 20:
            self.get_buffer("seen").add_(z.detach().mean(0))
        return z * self.get_buffer("ones") - self.get_buffer("seen")


def test_a_client_starts_without_what_the_one_before_left():
    clients = {name: tensors(name, 24) for name in "abcdefghijkl"}
    federation = feduhb.Federation(clients, tensors("test", 20), Remembering().double(), seed=7)
    engine = Stacked(federation, feduhb.Local(batch_size=24), device="cpu", block="recorded")
    everyone = train_all(engine, federation)
    alone = engine.train(feduhb.Work(feduhb.core.flat.flatten(federation.fresh_model()), 2), ("l",), 3)
    assert torch.equal(everyone[-1], next(iter(alone)).values[0])


@pytest.mark.parametrize("epochs", [0, 2])
def test_a_loss_that_cannot_be_stacked_can_be_recorded(epochs):
    federation, local = ragged(), feduhb.Local(batch_size=4, lr=0.01, loss=SUM)
    with pytest.raises(ConfigError, match="the loss is not the mean over the examples"):
        Stacked(federation, local, device="cpu")
    engine = Stacked(federation, local, device="cpu", block="recorded")
    expected = train_all(Loop(federation, local), federation, epochs)
    assert torch.equal(train_all(engine, federation, epochs), expected)


@pytest.mark.parametrize("loss", [functional.cross_entropy, nn.CrossEntropyLoss(ignore_index=1), SUM])
def test_labels_that_the_loss_leaves_out_need_not_be_classes(loss):
    x, y = tensors("cat", SIZES["cat"])
    ignored = getattr(loss, "ignore_index", -100)
    local = feduhb.Local(batch_size=4, lr=0.01, loss=loss)
    federation = ragged(cat=(x, torch.where(torch.arange(len(y)) == 5, ignored, y)))
    engine = Stacked(federation, local, device="cpu", block="recorded")
    assert torch.equal(train_all(engine, federation), train_all(Loop(federation, local), federation))
    wrong = ragged(cat=(x, torch.where(torch.arange(len(y)) == 5, -7, y)))
    with pytest.raises(
        AnswerError, match=r"client cat could not train in round 3 \(Target -7 is out of bounds"
    ):
        train_all(Stacked(wrong, local, device="cpu", block="recorded"), wrong)


@pytest.mark.parametrize(
    ("kind", "task"),
    [
        ("dropout of channels", None),
        ("tokens with a mask", None),
        ("adamw, clipping, schedule", None),
        ("augmentation", None),
        ("weights of classes", None),
        ("smoothing", Precondition(lr=0.1)),
    ],
)
def test_a_step_neither_waits_for_values_nor_leaves_its_device(kind, task, monkeypatch):
    take_steps_far_away(make_federation(kind), make_local(kind), task, monkeypatch)


@pytest.mark.parametrize("kind", FAST)
def test_a_step_with_squares_neither_waits_for_values_nor_leaves_its_device(kind, monkeypatch):
    monkeypatch.setattr(recorded, "square_gradients", None)
    federation, local = make_independent_federation(kind)
    take_steps_far_away(federation, local, Precondition(lr=0.1), monkeypatch, squares=True)


def take_steps_far_away(federation, local, task, monkeypatch, *, squares=False):
    """A device without values refuses to return them, and to compute with those of another, as a GPU does while it records."""
    monkeypatch.setattr(
        recorded, "_autocast", lambda *_: contextlib.nullcontext()
    )  # not made for this device
    far = torch.device("meta")
    module = prepare_training(federation.fresh_model())
    moved = replace(local, loss=move_loss(local.loss, far))
    lane = Lane(module, moved, far, "float32", task, squares=squares)
    lane.begin(feduhb.core.flat.flatten(module).to(far))
    for _ in range(2):
        lane.take_step(ExampleStore(federation.clients, far), torch.arange(4), torch.tensor(1), torch.ones(3))
    assert lane.end().device == far


def make_independent_federation(kind):
    """A federation whose last batches have one example, and how its clients train."""
    module, loss = make_independent(kind)
    sizes = {"ant": 1, "bee": 5, "cat": 13}
    data = {client: make_examples(kind, size, seed) for seed, (client, size) in enumerate(sizes.items())}
    told = functional.cross_entropy if kind == "sums" else loss
    federation = feduhb.Federation(data, make_examples(kind, 6, 9), module, seed=7, loss=told, start="given")
    return federation, feduhb.Local(batch_size=6, lr=0.05, loss=loss)


DEVICES = ["cpu", pytest.param("cuda", marks=gpu)]
SEVERAL_PASSES = [
    "tokens, torch's attention", "a table for places", "tokens before examples", "tied words", "a layer called twice",
    "a weight lent", "a number",
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [*FAST, *SEVERAL_PASSES])
def test_preconditioned_steps_are_those_of_the_loop(kind, device, monkeypatch):
    federation, local = make_independent_federation(kind)
    work = feduhb.Work(
        feduhb.core.flat.flatten(federation.fresh_model()), 2, task=Precondition(0.01, eps=0.05)
    )
    everyone = tuple(federation.clients)
    expected = torch.cat([block.values for block in Loop(federation, local).train(work, everyone, 3)])
    engine = Stacked(federation, local, device=device, block="recorded")
    monkeypatch.setattr(recorded, "square_gradients" if kind in FAST else "compute_squares", None)
    for _ in range(2):  # the second time, nothing is recorded
        found = torch.cat([block.values for block in engine.train(work, everyone, 3)])
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert None not in engine._recorders.values()  # which a GPU could not record
    assert expected.any(1).all()


@pytest.mark.parametrize("device", DEVICES)
def test_a_run_of_rapidretrain_is_that_of_the_loop(device, monkeypatch):
    monkeypatch.setattr("feduhb.engines.stacked.recorded.square_gradients", None)
    run = feduhb.train(ragged(), 1, epochs=1, batch_size=6, engine="loop")
    method = feduhb.RapidRetrain(lr=0.01, eps=0.05, epochs=2)
    slow = feduhb.unlearn(run, ["bee"], method=method, rounds=3)
    maker = functools.partial(Stacked, device=device, block="recorded")
    fast = feduhb.unlearn(run, ["bee"], method=method, rounds=3, engine=maker)
    torch.testing.assert_close(fast.params, slow.params, rtol=1e-9, atol=1e-9)


@gpu
def test_two_recordings_of_preconditioned_steps_give_the_same_bits():
    federation, local = make_independent_federation("tokens")
    work = feduhb.Work(
        feduhb.core.flat.flatten(federation.fresh_model()), 2, task=Precondition(0.01, eps=0.05)
    )
    one, two = (
        torch.cat([block.values for block in engine.train(work, tuple(federation.clients), 3)])
        for engine in [Stacked(federation, local, block="recorded") for _ in range(2)]
    )
    assert torch.equal(one, two)


def test_group_norm_that_stays_channels_last_is_group_norm():
    layer, x = nn.GroupNorm(2, 6), torch.randn(3, 6, 4, 5)
    expected = layer(x)
    layer.__class__ = ChannelsLastGroupNorm
    assert torch.equal(layer(x), expected)


@gpu
@pytest.mark.parametrize("places", [(1, 1), (5, 3), (32, 32)])
@pytest.mark.parametrize(("groups", "channels"), [(1, 3), (4, 64), (3, 60), (2, 512), (2, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_group_norm_on_triton_equals_torchs_in_float64(groups, channels, places, dtype):
    draw = torch.Generator("cuda").manual_seed(0)
    x, dy = (torch.randn(5, channels, *places, device="cuda", generator=draw).to(dtype) for _ in range(2))
    x = (x + 3).to(memory_format=torch.channels_last)
    exact = nn.GroupNorm(groups, channels).cuda()
    torch.nn.init.normal_(exact.weight)
    torch.nn.init.normal_(exact.bias)
    fast = ChannelsLastGroupNorm(groups, channels).cuda()
    fast.load_state_dict(exact.state_dict())
    exact.double()
    found = []
    for layer, given in ((exact, x.double()), (fast, x.clone(memory_format=torch.preserve_format))):
        given.requires_grad_()
        y = layer(given)
        parts = torch.autograd.grad(y, [given, layer.weight, layer.bias], dy.to(y.dtype))
        found.append([part.detach().double() for part in (y, *parts)])
    assert fast(x).is_contiguous(memory_format=torch.channels_last)
    for expected, got in zip(*found, strict=True):
        size = expected.norm() if float(expected.norm()) > 1e-6 else torch.ones((), device="cuda")
        assert float((got - expected).norm() / size) < (1e-2 if dtype == torch.bfloat16 else 2e-5)


ALIKE = ["resnet", "dropout", "dropout of channels", "frozen backbone", "two inputs", "augmentation"]


@gpu
@pytest.mark.parametrize("kind", ALIKE)
def test_on_a_gpu_float32_gives_the_bits_of_the_loop_there(kind):
    federation, local = make_federation(kind, torch.float32), make_local(kind)
    engine = Stacked(federation, local, block="recorded")
    first = train_all(engine, federation)
    assert torch.equal(first, train_all(Loop(federation, local, device="cuda"), federation))
    train_all(engine, federation, epochs=1, round=5)
    assert torch.equal(train_all(engine, federation), first)


@gpu
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_gpu_every_kind_is_recorded_and_trains_like_the_loop(kind):
    federation = make_federation(kind)
    engine = Stacked(federation, make_local(kind), block="recorded")
    torch.testing.assert_close(train_all(engine, federation), train_on_loop(kind), rtol=0, atol=1e-9)


def make_small_resnet(norm, sizes=(70, 64, 33)):
    draw = torch.Generator().manual_seed(0)

    def images(count):
        return torch.randn(count, 3, 16, 16, generator=draw), torch.randint(10, (count,), generator=draw)

    data = {f"c{i}": images(size) for i, size in enumerate(sizes)}
    return feduhb.Federation(data, images(9), lambda: resnet18((3, 16, 16), 10, norm=norm, width=32))


@gpu
@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 0), ("tf32", 0.05), ("bf16", 0.3)])
def test_a_step_of_resnet_is_the_loops_within_its_precision(norm, precision, tolerance):
    """One step: over several, a ReLU that rounding opens or closes changes what follows."""
    federation, local = make_small_resnet(norm, (32, 31, 20)), feduhb.Local(batch_size=32, lr=0.01)
    expected = train_all(Loop(federation, local, device="cuda"), federation, epochs=1)
    found = train_all(Stacked(federation, local, precision=precision, block="recorded"), federation, epochs=1)
    assert float((found - expected).norm()) <= tolerance * float(expected.norm())


@gpu
@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_two_recordings_give_the_same_bits(norm, precision):
    federation, local = make_small_resnet(norm), feduhb.Local(batch_size=32, lr=0.01)
    engines = [Stacked(federation, local, precision=precision, block="recorded") for _ in range(2)]
    one, two = (train_all(engine, federation, epochs=2) for engine in engines)
    assert torch.equal(one, two)


@gpu
def test_steps_are_recorded_again_for_clients_with_larger_batches():
    federation, local = make_small_resnet("batch", (9, 64, 33)), feduhb.Local(batch_size=32, lr=0.01)
    used, fresh = (Stacked(federation, local, block="recorded") for _ in range(2))
    work = feduhb.Work(feduhb.core.flat.flatten(federation.fresh_model()), 1)
    list(used.train(work, ("c0",), 0))
    assert torch.equal(train_all(used, federation), train_all(fresh, federation))


@gpu
def test_a_trial_chooses_and_its_choice_can_be_repeated():
    federation, local = make_small_resnet("batch"), feduhb.Local(batch_size=32, lr=0.01)
    picked = pick_engine(federation, local)
    assert picked.about["name"] == "stacked"
    assert "ms" in picked.why
    again = Stacked(federation, local, block=picked.about["block"])
    assert torch.equal(train_all(picked, federation, epochs=1), train_all(again, federation, epochs=1))


@gpu
def test_a_given_block_is_not_tried():
    federation, local = make_small_resnet("batch"), feduhb.Local(batch_size=32, lr=0.01)
    whys = [Stacked(federation, local, block=block).why for block in (1, 3, "recorded")]
    mapped = "mapped by torch.func: its norms gather statistics"
    assert whys == [mapped, mapped, "recorded client by client, as given"]


class Waits(nn.Sequential):
    """Its forward pass waits for the GPU."""

    def forward(self, input):
        return super().forward(input) * (1 if float(input.sum()) == float("inf") else 2)


@gpu
def test_steps_that_wait_for_the_host_are_not_recorded():
    layers = nn.Flatten(), nn.Linear(144, 3)
    local = feduhb.Local(batch_size=4, lr=0.01)
    images = ragged(dtype=torch.float32)
    federation = feduhb.Federation(images.clients, images.test, Waits(*layers))
    picked = pick_engine(federation, local)
    assert picked.about["name"] == "loop"
    assert "torch.func cannot map this model" in picked.why
    assert "its steps cannot be recorded" in picked.why
    assert train_all(picked, federation).isfinite().all()


class Copies(nn.Sequential):
    """Its forward pass copies a number from the host, which neither way can record."""

    def forward(self, input):
        return super().forward(input) * torch.tensor(2.0, device=input.device)


@gpu
def test_a_model_that_copies_from_the_host_trains_on_the_loop_of_a_gpu():
    images, local = ragged(dtype=torch.float32), feduhb.Local(batch_size=4, lr=0.01)
    model = Copies(nn.Flatten(), nn.Linear(144, 3))
    federation = feduhb.Federation(images.clients, images.test, model)
    picked = pick_engine(federation, local)
    assert picked.about["name"] == "loop"
    assert "its steps cannot be recorded" in picked.why
    assert train_all(picked, federation).isfinite().all()


@gpu
def test_a_loss_that_copies_from_the_host_trains_on_the_loop_of_a_gpu():
    def double(outputs, targets):
        return functional.cross_entropy(outputs, targets) * torch.tensor(2.0, device=outputs.device)

    federation, local = ragged(dtype=torch.float32), feduhb.Local(batch_size=4, lr=0.01, loss=double)
    picked = pick_engine(federation, local)
    assert picked.about["name"] == "loop"
    assert "its steps cannot be recorded" in picked.why
    assert train_all(picked, federation).isfinite().all()


class Last(nn.Module):
    """A recurrent layer, of whose outputs the last one counts."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.LSTM(12, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.layer(x.flatten(1, 2))[0][:, -1])


@gpu
def test_an_lstm_trains_on_a_gpu_like_the_loop():
    images, local = ragged(dtype=torch.float32), feduhb.Local(batch_size=4, lr=0.01)
    federation = feduhb.Federation(images.clients, images.test, Last())
    found = train_all(pick_engine(federation, local), federation)
    expected = train_all(Loop(federation, local, device="cuda"), federation)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@gpu
def test_a_loss_that_cannot_be_stacked_is_recorded_on_a_gpu():
    federation, local = ragged(dtype=torch.float32), feduhb.Local(batch_size=4, lr=0.01, loss=SUM)
    engine = pick_engine(federation, local)
    assert engine.about["block"] == "recorded"
    for epochs in (0, 2):
        expected = train_all(Loop(federation, local, device="cuda"), federation, epochs)
        torch.testing.assert_close(train_all(engine, federation, epochs), expected, rtol=1e-5, atol=1e-7)
