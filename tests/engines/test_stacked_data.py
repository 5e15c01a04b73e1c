"""The stacked engine reads the same data as the loop, in any memory layout, or raises the same error."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import feduhb
from federations import ragged, tensors
from feduhb.core.flat import flatten
from feduhb.data.federation import Examples
from feduhb.engines import Loop, Stacked
from feduhb.engines.stacked.data import ExampleStore, are_tensors_shared
from feduhb.errors import AnswerError, ConfigError

CPU = torch.device("cpu")
X, Y = (part.clone() for part in tensors("storage", 60))


def federation(clients, model=None, **changes):
    model = model or nn.Sequential(nn.Flatten(), nn.Linear(144, 3)).double()
    return feduhb.Federation(clients, tensors("test", 5), model, seed=7, **changes)


def train_all(engine, epochs=1, clients=None, round=3):
    work = feduhb.Work(flatten(engine.federation.fresh_model()), epochs)
    asked = tuple(clients or engine.federation.clients)
    return torch.cat([block.values for block in engine.train(work, asked, round)])


def check_equals_loop(world, *, epochs=1, **settings):
    local = feduhb.Local(batch_size=7, lr=0.1, l2=0.05)
    found = train_all(Stacked(world, local, device="cpu", **settings), epochs)
    torch.testing.assert_close(found, train_all(Loop(world, local), epochs), rtol=0, atol=1e-10)


@st.composite
def views(draw, size):
    """Inputs and targets that begin anywhere in one storage and step through it in any way; sometimes rows of them."""
    x = X[draw(st.sampled_from([0, 0, 3])) :: draw(st.integers(1, 3))][:size]
    x = draw(st.sampled_from([x, x, x.transpose(2, 3), x[:1].expand_as(x)]))
    y = Y[draw(st.sampled_from([0, 0, 5])) :: draw(st.integers(1, 2))][:size]
    rows = draw(st.none() | st.none() | st.lists(st.integers(-size, size - 1), min_size=1, max_size=6))
    return Examples.of(x, y, None if rows is None else torch.tensor(rows))


several = st.integers(1, 12).flatmap(lambda size: st.lists(views(size), min_size=2, max_size=4))


@pytest.mark.slow
@settings(max_examples=25, deadline=None, derandomize=True)
@given(clients=several, epochs=st.integers(0, 2), block=st.integers(1, 4), mapped=st.booleans())
def test_clients_who_view_one_storage_in_their_own_ways_train_as_on_the_loop(clients, epochs, block, mapped):
    """All have one length, so that only their views distinguish them."""
    world = federation({f"c{i}": examples for i, examples in enumerate(clients)})
    check_equals_loop(world, epochs=epochs, block=block, mapped=mapped)


VIEWS = {
    "transposed": ((X, Y), (X.transpose(2, 3), Y)),
    "every second": ((X[:20], Y[:20]), (X[::2][:20], Y[::2][:20])),
    "every second target": ((X[:20], Y[:20]), (X[:20], Y[::2][:20])),
    "one for all": ((X[:9], Y[:9]), (X[:1].expand(9, 1, 12, 12), Y[:9])),
    "another length": ((X[:3], Y[:3]), (X, Y)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_that_begin_at_the_same_place_are_distinguished(name):
    clients = dict(zip("ab", (Examples.of(*pair) for pair in VIEWS[name]), strict=True))
    assert not are_tensors_shared(clients)
    store = ExampleStore(clients, CPU)
    for client, examples in clients.items():
        x, y = examples.all()
        assert torch.equal(store.x[store.rows[client]], x)
        assert torch.equal(store.y[store.rows[client]], y)
    check_equals_loop(federation(clients))


def test_views_of_another_type_are_distinguished():
    """Whole numbers and the same bits read as fractions begin at one place and step alike."""
    x, y = X[:4], torch.arange(4)
    clients = {"a": Examples.of(x, y), "b": Examples.of(x, y.view(torch.float64))}
    assert not are_tensors_shared(clients)


def test_a_store_lies_in_memory_row_by_row_as_kernels_read_it():
    images = torch.rand(6, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    store = ExampleStore({"a": Examples.of(images, torch.arange(12)[::2])}, CPU)
    assert store.x.is_contiguous()
    assert store.y.is_contiguous()
    assert torch.equal(store.x, images)
    assert store.y.tolist() == [0, 2, 4, 6, 8, 10]


def test_rows_counted_from_the_end_belong_to_the_client():
    clients = {"a": Examples.of(X[:4], Y[:4], torch.tensor([-1, 0])), "b": (X[4:9], Y[4:9])}
    assert ExampleStore(federation(clients).clients, CPU).rows["a"].tolist() == [3, 0]
    check_equals_loop(federation(clients))


@pytest.mark.parametrize("row", [4, -5])
def test_rows_beyond_the_clients_data_are_refused_by_name(row):
    """The store holds the next client's examples there."""
    clients = {"a": (X[9:12], Y[9:12]), "b": Examples.of(X[:4], Y[:4], torch.tensor([1, row])), "c": (X[4:9], Y[4:9])}  # fmt: skip
    world = federation(clients)
    for made in (Loop, Stacked):
        with pytest.raises(AnswerError, match=f"client b could not train in round .* {row} is out of bounds"):
            train_all(made(world))
    with pytest.raises(IndexError, match=f"row {row} is out of bounds: the client has 4 examples"):
        ExampleStore(world.clients, CPU).check("b", None)


def keep_all(engine):
    """Let an engine keep all examples, as on a GPU with room for them."""
    engine._setup.stores.keeps_all = True
    return engine


def halve(world):
    world.clients["b"].x.mul_(0.5)


def relabel(world):
    world.clients["b"].y.copy_((world.clients["b"].y + 1) % 3)


def change_rows(world):
    world.clients["b"].rows.copy_(world.clients["b"].rows.flip(0).clone() - 1)


def replace_client(world):
    world.clients["b"] = Examples.of(X[50:57].clone(), Y[50:57])


STORES = {
    "shared": lambda x, y: {"a": Examples.of(x, y, torch.arange(9)), "b": Examples.of(x, y, torch.arange(9, 20))},
    "apart": lambda x, y: {"a": (x[:9].clone(), y[:9].clone()), "b": (x[9:].clone(), y[9:].clone())},
}  # fmt: skip


@pytest.mark.parametrize("change", [halve, relabel, change_rows, replace_client])
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("turned", [False, True])
def test_data_that_change_between_rounds_are_read_as_they_are(turned, store, change):
    x, y = X[:20].clone(), Y[:20].clone()
    world = federation(STORES[store](x.transpose(2, 3) if turned else x, y))
    engine = keep_all(Stacked(world, device="cpu"))
    before = train_all(engine)
    first = engine._setup.stores.kept
    assert torch.equal(train_all(engine), before)
    assert engine._setup.stores.kept is first
    change(world)
    after = train_all(engine)
    assert not torch.equal(after, before)
    torch.testing.assert_close(after, train_all(Loop(world)), rtol=0, atol=1e-10)


def test_data_made_in_inference_mode_can_be_stored():
    with torch.inference_mode():
        x, y = X[:9] * 1, Y[:9] * 1
    check_equals_loop(federation({"a": (x, y)}))


@pytest.mark.parametrize("bad", [7, -1])
@pytest.mark.parametrize("loss", [nn.functional.cross_entropy, nn.CrossEntropyLoss()])
@pytest.mark.parametrize("mapped", [False, True])
def test_a_label_that_is_not_a_class_is_refused_in_the_loops_words(mapped, loss, bad):
    y = Y[:30].clone()
    y[16] = bad  # among the examples that go through the model on trial
    world = federation({"ant": (X[:5], Y[:5]), "bee": (X[:30], y), "cat": (X[5:9], Y[5:9])}, loss=loss)
    local = feduhb.Local(loss=loss)
    engines = Loop(world, local), Stacked(world, local, device="cpu", mapped=mapped)
    for engine in engines:
        with pytest.raises(
            AnswerError,
            match=rf"client bee could not train in round 3 \(Target {bad} is out of bounds\.\); look at",
        ):
            train_all(engine)
    left = [train_all(engine, clients=("ant", "cat")) for engine in engines]
    torch.testing.assert_close(left[0], left[1], rtol=0, atol=1e-10)


def test_labels_are_checked_in_the_store_once_per_client(monkeypatch):
    """A GPU's kernel compares a label with each class and would find none; nothing is looked at again in later rounds."""
    x, y = X[:20], Y[:20].clone()
    y[15] = 3
    clients = {"a": Examples.of(x, y, torch.arange(9)), "b": Examples.of(x, y, torch.arange(9, 20))}
    store = ExampleStore(clients, CPU)
    with pytest.raises(IndexError, match=r"Target 3 is out of bounds\."):
        store.check("b", 3)
    store.check("b", None)  # not every target is a label
    looked = []
    world = federation({"a": clients["a"], "c": Examples.of(x, y, torch.arange(3))})
    engine = Stacked(world, device="cpu")
    ends = torch.aminmax
    monkeypatch.setattr(torch, "aminmax", lambda numbers: (looked.append(1), ends(numbers))[1])
    train_all(engine)
    assert len(looked) == 4  # rows and labels of two clients
    train_all(engine, epochs=0)
    assert len(looked) == 4


def test_targets_of_several_types_or_shapes_are_refused():
    """Joined in one tensor they would all take the widest type."""
    whole, soft = Y[:5], nn.functional.one_hot(Y[:5], 3).double()
    with pytest.raises(
        ConfigError,
        match=r"client b holds targets of torch.float64 \[3\], client a of torch.int64 \[\]; make them alike, or use engine",
    ):
        Stacked(federation({"a": (X[:5], whole), "b": (X[:5], soft)}), device="cpu")
    with pytest.raises(ConfigError, match=r"client b holds targets of torch.uint8 \[\]"):
        Stacked(federation({"a": (X[:5], whole), "b": (X[:5], whole.to(torch.uint8))}), device="cpu")


@pytest.mark.parametrize("mapped", [False, True])
def test_a_layer_that_writes_into_its_input_does_no_harm(mapped):
    layers = (
        nn.ReLU(inplace=True), nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(100, 5), nn.ReLU(inplace=True), nn.Linear(5, 3),
    )  # fmt: skip
    x = X.clone()
    world = federation({"a": (x, Y), "b": (x[:3], Y[:3])}, nn.Sequential(*layers).double())
    check_equals_loop(world, epochs=2, mapped=mapped)
    assert torch.equal(x, X)


def test_many_clients_with_tensors_of_their_own_are_not_compared_again_for_every_block(monkeypatch):
    """Ten thousand clients times the blocks they make would take longer than their training."""
    world = ragged({f"c{i}": 2 for i in range(40)})
    engine = Stacked(world, device="cpu", block=4)
    asked = []
    key = feduhb.engines.stacked.data._key
    monkeypatch.setattr(
        "feduhb.engines.stacked.data._key", lambda examples: (asked.append(1), key(examples))[1]
    )
    train_all(engine, epochs=0)
    assert len(asked) <= 2 * 40 + 2
