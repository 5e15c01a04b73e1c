"""A trial runs the loss on every target that occurs: the stacked engine accepts only means over examples."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import feduhb
from federations import tensors
from feduhb.core.flat import flatten
from feduhb.data.federation import Examples
from feduhb.engines import Loop, Stacked
from feduhb.engines.stacked import data, trial
from feduhb.engines.stacked.data import sample_examples, sample_targets
from feduhb.engines.stacked.trial import check_mean
from feduhb.errors import ConfigError
from toys import quick

REFUSED = "the loss is not the mean over the examples of a batch, or the model mixes them; use engine 'pool' or 'loop'"
X, Y = tensors("some", 40)
SORTED = Y.sort().values  # so that the first examples of each client are of one class


def split_clients(y, x=X):
    """Return three clients, the largest with one class in front."""
    return {"ant": (x[:25], y[:25]), "bee": (x[25:39], y[25:39]), "cat": (x[39:], y[39:])}


def federation(y, loss, *, outputs=3, model=None):
    model = model or nn.Sequential(nn.Flatten(), nn.Linear(144, outputs))
    return feduhb.Federation(split_clients(y), (X, y), model.double(), seed=7, loss=loss)


def entropy(**settings):
    return functools.partial(functional.cross_entropy, **settings)


def hide(loss):
    """Return a loss of which the engine does not know that it is cross-entropy."""
    return lambda outputs, targets: loss(outputs, targets)


def doubles(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def counting_only(outputs, targets):
    """Squares where a target is not 0."""
    counted = targets != 0
    return ((outputs.squeeze(1) - targets).square() * counted).sum() / counted.sum()


def known_only(outputs, targets):
    known = ~targets.isnan()
    return ((outputs.squeeze(1) - targets.nan_to_num()).square() * known).sum() / known.sum()


def hardest(outputs, targets):
    return functional.cross_entropy(outputs, targets, reduction="none").max()


def pulled(outputs, targets):
    """A mean over examples, and a little of the batch's own."""
    return functional.cross_entropy(outputs, targets) + 0.01 * outputs.mean().square()


def gaps(y):
    return torch.where(torch.arange(len(y)) % 9 == 8, torch.nan, y.double())


NO_MEANS = {
    "weights": (SORTED, hide(entropy(weight=doubles(1, 5, 20)))),
    "weights, a module": (SORTED, hide(nn.CrossEntropyLoss(weight=doubles(1, 5, 20)))),
    "a weight, the last class's": (SORTED, hide(entropy(weight=doubles(1, 1, 1.02)))),
    "a class left out": (SORTED, hide(entropy(ignore_index=2))),
    "a class left out, the first": (SORTED, hide(nn.CrossEntropyLoss(ignore_index=0))),
    "labels left out": (torch.where(torch.arange(40) == 33, -100, SORTED), functional.cross_entropy),
    "the hardest": (SORTED, hardest),
    "pulled": (SORTED, pulled),
    "some do not count": (SORTED.double(), counting_only),
    "some are missing": (gaps(SORTED), known_only),
}
MEANS = {
    "entropy": (SORTED, functional.cross_entropy),
    "a module": (SORTED, nn.CrossEntropyLoss()),
    "smoothing": (SORTED, entropy(label_smoothing=0.1)),
    "equal weights": (SORTED, entropy(weight=doubles(2, 2, 2))),
    "a weight of a class that nobody holds": (SORTED.clamp(max=1), entropy(weight=doubles(2, 2, 7))),
    "a class that nobody holds left out": (SORTED.clamp(max=1), entropy(ignore_index=2)),
    "weights": (SORTED, entropy(weight=doubles(1, 5, 20))),
    "weights, a module": (SORTED, nn.CrossEntropyLoss(weight=doubles(1, 5, 20))),
    "weights, smoothing": (SORTED, entropy(weight=doubles(1, 5, 20), label_smoothing=0.2)),
    "a weight of 0": (Y, entropy(weight=doubles(1, 0, 2))),
    "a class left out": (Y, nn.CrossEntropyLoss(ignore_index=0)),
    "a class left out, weights, smoothing": (Y, entropy(weight=doubles(1, 5, 20), ignore_index=1, label_smoothing=0.2)),
    "unknown labels": (torch.where(torch.arange(40) % 7 == 3, -1, Y), entropy(ignore_index=-1)),
    "labels left out, weights": (torch.where(torch.arange(40) % 7 == 3, -100, Y), entropy(weight=doubles(1, 5, 20))),
    "weights of probabilities": (functional.one_hot(SORTED, 3).double() * 0.7 + 0.1, entropy(weight=doubles(1, 5, 20))),
    "squares": (SORTED.double().unsqueeze(1), functional.mse_loss),
    "probabilities": (functional.one_hot(SORTED, 3).double() * 0.7 + 0.1, functional.cross_entropy),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_MEANS)
def test_a_loss_that_weighs_some_targets_more_is_refused_wherever_they_are(name):
    y, loss = NO_MEANS[name]
    world = federation(y, loss, outputs=1 if y.is_floating_point() else 3)
    with pytest.raises(ConfigError, match=REFUSED):
        Stacked(world, feduhb.Local(loss=loss), device="cpu")


@pytest.mark.parametrize("name", MEANS)
def test_a_loss_that_is_a_mean_trains_as_on_the_loop(name):
    y, loss = MEANS[name]
    world = federation(y, loss, outputs=1 if y.shape[1:] == (1,) else 3)
    local = feduhb.Local(batch_size=6, lr=0.1, loss=loss)
    for epochs in (0, 2):
        work = feduhb.Work(flatten(world.fresh_model()), epochs)
        slow, *others = (
            torch.cat([block.values for block in engine.train(work, tuple(world.clients), 0)])
            for engine in (
                Loop(world, local),
                Stacked(world, local, device="cpu"),
                Stacked(world, local, device="cpu", mapped=True),
            )
        )
        for fast in others:
            torch.testing.assert_close(fast, slow, rtol=0, atol=1e-10, equal_nan=True)


def test_outputs_of_one_number_an_example_are_fine():
    class Scores(nn.Linear):
        def forward(self, input):
            return super().forward(input.flatten(1)).squeeze(1)

    loss = functional.binary_cross_entropy_with_logits
    Stacked(federation((SORTED > 1).double(), loss, model=Scores(144, 1)), feduhb.Local(loss=loss), device="cpu")  # fmt: skip


def test_pixels_left_out_are_refused_unless_every_image_lacks_as_many():
    y = (X[:, 0] > 0).long()
    y[:, 0, 0] = -100
    model = nn.Conv2d(1, 2, 3, padding=1)
    Stacked(federation(y, functional.cross_entropy, model=model), device="cpu")
    places, _ = sample_examples(make_clients(range(25), range(25, 39), [39]), trial.FEW)
    assert 12 not in places
    y[12, :9] = -100
    with pytest.raises(ConfigError, match=REFUSED):
        Stacked(federation(y, functional.cross_entropy, model=model), device="cpu")


def known_labels(outputs, targets):
    """Mean over the labels of a batch that are not -1."""
    known = (targets >= 0).to(outputs.dtype)
    labels = targets.clamp(min=0).to(outputs.dtype)
    losses = functional.binary_cross_entropy_with_logits(outputs, labels, reduction="none")
    return (losses * known).sum() / known.sum()


SEVERAL = {  # shape of inputs and of targets, what marks a number as left out, model, loss
    "pixels": ((1, 2, 3), (2, 3), -100, lambda: nn.Conv2d(1, 2, 1), functional.cross_entropy),
    "labels": ((3,), (6,), -1, lambda: nn.Linear(3, 6), known_labels),
}


@pytest.mark.parametrize("name", SEVERAL)
@settings(quick, max_examples=20)
@given(
    usual=st.integers(0, 5),
    odd=st.dictionaries(st.integers(0, 39), st.integers(0, 5), max_size=3),
    most=st.sampled_from([trial.FEW, trial.VALUES]),
    seed=st.integers(0, 99),
)
def test_numbers_left_out_are_refused_or_train_as_on_the_loop(name, usual, odd, most, seed):
    """Taken if and only if as many of the six are left out of every example, also where few examples are tried."""
    inputs, shape, mark, model, loss = SEVERAL[name]
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(40, *inputs, generator=draw, dtype=torch.float64)
    y = torch.randint(0, 2, (40, 6), generator=draw)
    lacking = [odd.get(i, usual) for i in range(40)]
    for target, count in zip(y, lacking, strict=True):
        target[torch.randperm(6, generator=draw)[:count]] = mark
    y = y.reshape(40, *shape)
    world = feduhb.Federation(split_clients(y, x), (x, y), model().double(), seed=7, loss=loss)
    local = feduhb.Local(batch_size=6, lr=0.1, loss=loss)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "VALUES", most)
        if len(set(lacking)) > 1:
            with pytest.raises(ConfigError, match=REFUSED):
                Stacked(world, local, device="cpu")
            return
        stacked = Stacked(world, local, device="cpu")
    work = feduhb.Work(flatten(world.fresh_model()), 1)
    slow, fast = (
        torch.cat([block.values for block in engine.train(work, tuple(world.clients), 0)])
        for engine in (Loop(world, local), stacked)
    )
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-10)


def test_a_model_that_mixes_examples_is_found_out_though_the_first_are_alike():
    class Mixing(nn.Linear):
        def forward(self, input):
            return super().forward(input.flatten(1) - input.flatten(1).mean(0))

    x = X.clone()
    x[:20] = 0
    world = feduhb.Federation(split_clients(Y, x), (x, Y), Mixing(144, 3).double(), seed=7)
    with pytest.raises(ConfigError, match="or the model mixes them"):
        Stacked(world, device="cpu")


@quick
@given(
    classes=st.integers(2, 300),
    odd=st.integers(0, 299),
    factor=st.sampled_from([0.0, 0.5, 1.01]),
    seed=st.integers(0, 9),
)
def test_one_odd_class_among_many_shows(classes, odd, factor, seed):
    """Each target's own part is compared, so that no number of others can hide it; batches are of 256."""
    draw = torch.Generator().manual_seed(seed)
    outputs = torch.randn(3, classes, generator=draw)
    targets = torch.randperm(classes, generator=draw)
    weight = torch.ones(classes)
    loss = hide(entropy(weight=weight))
    check_mean(loss, outputs, targets)
    weight[odd % classes] = factor
    with pytest.raises(ConfigError, match=REFUSED):
        check_mean(loss, outputs, targets)


def test_weights_that_differ_only_between_batches_show():
    """All batches share their first target: 256 of one weight, then 255 of another."""
    weight = torch.ones(511)
    weight[256:] = 3
    with pytest.raises(ConfigError, match=REFUSED):
        check_mean(hide(entropy(weight=weight)), torch.randn(2, 511), torch.arange(511))


def test_a_loss_that_torch_cannot_map_is_refused_with_the_reason():
    def chosen(outputs, targets):
        return outputs[targets > 0].square().mean()

    with pytest.raises(
        ConfigError, match=r"torch.func cannot map this model, loss or augmentation \(vmap: .*; use engine"
    ):
        check_mean(chosen, torch.ones(2, 3), torch.tensor([0, 1, 2]))


def test_targets_that_are_nan_do_not_count_against_the_loss():
    targets = torch.tensor([0.5, torch.nan, 2.0, torch.inf])
    check_mean(functional.mse_loss, torch.zeros(2), targets)
    with pytest.raises(ConfigError, match=REFUSED):
        check_mean(functools.partial(functional.mse_loss, reduction="sum"), torch.zeros(2), targets)


def test_targets_that_a_loss_rejects_are_left_out_of_the_trial():
    outputs = torch.zeros(2, 3)
    check_mean(functional.cross_entropy, outputs, torch.tensor([9, 0, 1, -7, 2]))
    check_mean(functional.cross_entropy, outputs, torch.tensor([9]))
    with pytest.raises(ConfigError, match=REFUSED):
        check_mean(hide(entropy(ignore_index=1)), outputs, torch.tensor([9, 0, 1, -7, 2]))


def make_clients(*targets, rows=None):
    """Return clients with these targets; the input is the target's first number."""
    made = {}
    for i, y in enumerate(map(torch.as_tensor, targets)):
        made[f"c{i}"] = Examples.of(y.reshape(len(y), -1)[:, :1], y, rows)
    return made


def test_examples_are_spread_over_all_clients():
    x, y = sample_examples(make_clients([0, 1, 2], [3], [4, 5, 6, 7, 8]), 5)
    assert x.flatten().tolist() == y.tolist() == [0, 2, 4, 6, 8]
    assert sample_examples(make_clients([4], [3]), 8)[1].tolist() == [4, 3]
    backwards = torch.tensor([2, 0])
    assert sample_examples(make_clients([0, 1, 2], [7, 8, 9], rows=backwards), 4)[1].tolist() == [2, 0, 9, 7]


@quick
@given(labels=st.lists(st.lists(st.integers(-3, 9), min_size=1, max_size=12), min_size=1, max_size=5))
def test_every_label_occurs_once(labels):
    found = sample_targets(make_clients(*labels), 100).tolist()
    assert sorted(found) == sorted({label for own in labels for label in own})


def test_of_too_many_values_the_commonest_and_both_ends_are_met():
    y = [5, 5, 5, -9, 1, 1, 2, 3, 40]
    assert sorted(sample_targets(make_clients(y[:4], y[4:]), 2).tolist()) == [-9, 1, 5, 40]
    missing = torch.nan
    fractions = torch.tensor([0.5, missing, 0.1, missing, 0.7, 0.5, missing])
    assert sample_targets(make_clients(fractions), 1).nan_to_num(9.0).tolist() == pytest.approx([9.0, 0.1])


def test_of_targets_with_many_numbers_whole_ones_are_given():
    y = [[0, 0], [0, 1], [1, 1], [2, 1]]
    assert sample_targets(make_clients(y), 10).tolist() == y
    y = [[0, 0], [0, 1], [0, 1], [1, 1], [0, 1], [0, 0], [0, 1]]
    assert sample_targets(make_clients(y), 1).tolist() == [[0, 0], [1, 1]]
    assert sample_targets(make_clients(y), 2).tolist() == [[0, 0], [1, 1], [0, 1]]


@quick
@given(rows=st.integers(1, 60), high=st.integers(1, 6), most=st.integers(1, 4), seed=st.integers(0, 99))
def test_those_with_the_most_and_the_fewest_of_each_common_value_are_given(rows, high, most, seed):
    everyone = torch.randint(0, high, (rows, 9), generator=torch.Generator().manual_seed(seed))
    found = sample_targets(make_clients(everyone), most)
    values, counts = everyone.unique(return_counts=True)
    common = values[counts.argsort(descending=True, stable=True)[:most]].tolist()
    for value in {*common, int(values[0]), int(values[-1])}:
        ours, all_of_them = ((part == value).sum(1) for part in (found, everyone))
        assert ours.aminmax() == all_of_them.aminmax()
    assert min(rows, most) <= len(found) <= min(rows, 3 * most + 4)


def test_a_limited_number_of_targets_is_read_from_every_client(monkeypatch):
    monkeypatch.setattr(data, "MOST_NUMBERS", 5)
    found = sample_targets(make_clients(range(10), range(20, 24), [77]), 100)
    assert found.tolist() == [0, 3, 6, 9, 20, 23, 77]
