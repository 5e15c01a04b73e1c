"""What happens to each tensor of a module: trained, gathered as a statistic, carried, or ignored."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from feduhb.core.draws import draw_at
from feduhb.core.flat import count_statistics, draw_model, flatten, list_parts, unflatten
from feduhb.core.modules import (
    digest_carried,
    find_changed,
    has_batch_norm,
    has_dropout,
    list_carried,
    list_norms,
    list_statistics,
    list_trained,
    prepare_training,
    watch_layers,
)


class Net(nn.Module):
    """A frozen part with BatchNorm, a trained part with BatchNorm, a position table and a layer without parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).requires_grad_(False)
        self.head = nn.Sequential(
            nn.Linear(3, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Dropout(0.5), nn.Linear(3, 1)
        )
        self.register_buffer("table", torch.tensor([1.0, 2.0, 3.0]))
        self.register_buffer("hidden", torch.tensor([5]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x) + self.table)


def names(pairs: list[tuple[str, Tensor]]) -> list[str]:
    return [name for name, _ in pairs]


def test_every_tensor_has_its_place():
    net = Net()
    trained = ["head.0.weight", "head.0.bias", "head.1.weight", "head.1.bias", "head.4.weight", "head.4.bias"]
    assert [name for name, _ in list_trained(net)] == trained
    assert names(list_statistics(net)) == ["head.1.running_mean", "head.1.running_var"]
    carried = ["body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias"]
    frozen_norm = ["body.1.running_mean", "body.1.running_var"]
    assert sorted(names(list_carried(net))) == sorted([*carried, *frozen_norm, "table", "hidden"])
    assert names(list_parts(net)) == [*trained, "head.1.running_mean", "head.1.running_var"]
    assert flatten(net).tolist()[-6:] == [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    assert count_statistics(net) == 6
    everything = {*names(list_parts(net)), *names(list_carried(net))}
    left = {*net.state_dict(), "hidden"} - everything
    assert left == {"body.1.num_batches_tracked", "head.1.num_batches_tracked"}


def test_a_step_changes_what_is_trained_and_gathered_and_nothing_else():
    net = prepare_training(Net())
    before = copy.deepcopy(net)
    with draw_at(0):
        net(torch.randn(8, 2)).square().mean().backward()
    torch.optim.SGD([p for _, p in list_trained(net)], lr=1.0).step()
    was = dict(list_parts(before))
    for name, value in list_statistics(net):
        assert not torch.equal(value, was[name])
    assert not torch.equal(flatten(net), flatten(before))
    assert [*find_changed(net, dict(list_carried(before)))] == []
    assert all(p.grad is None for p in net.body.parameters())  # pyright: ignore[reportAttributeAccessIssue]


def test_a_vector_goes_into_parameters_and_statistics():
    net = Net()
    vector = torch.arange(float(flatten(net).numel()))
    unflatten(vector, net)
    assert torch.equal(flatten(net), vector)
    assert net.get_buffer("head.1.running_var").tolist() == vector[-3:].tolist()


def test_a_frozen_norm_stays_in_evaluation_and_a_half_frozen_one_gathers():
    net = prepare_training(Net())
    assert [name for name, _ in list_norms(net)] == ["head.1"]
    modes = {name: layer.training for name, layer in net.named_modules() if isinstance(layer, nn.BatchNorm1d)}
    assert modes == {"body.1": False, "head.1": True}
    half = nn.BatchNorm1d(2)
    half.bias.requires_grad_(False)
    assert len(list_norms(half)) == 1
    bare = nn.BatchNorm1d(2, affine=False)  # has nothing that could be frozen
    assert len(list_norms(nn.Sequential(nn.Linear(2, 2), bare))) == 1


def test_counters_of_batches_are_not_part_of_the_model():
    net = Net()
    vector, digest = flatten(net), digest_carried(net)
    for part in ("body", "head"):
        net.get_buffer(f"{part}.1.num_batches_tracked").fill_(99)
    assert torch.equal(flatten(net), vector)
    assert digest_carried(net) == digest


def test_fresh_statistics_are_those_of_a_new_layer_whatever_the_module_saw():
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.InstanceNorm1d(3, track_running_stats=True))
    expected = flatten(draw_model(net, 1))
    with torch.no_grad():
        for _, value in list_statistics(net):
            value.fill_(7.0)
    assert torch.equal(flatten(draw_model(net, 1)), expected)
    assert expected[-12:].tolist() == [*[0.0] * 3, *[1.0] * 3] * 2
    assert torch.equal(flatten(draw_model(net, 1, given=True)), flatten(net))


def test_which_layers_need_batches_and_which_draw():
    linear = nn.Linear(2, 2)
    assert has_batch_norm(nn.Sequential(linear, nn.BatchNorm1d(2)))
    assert not has_batch_norm(nn.Sequential(linear, nn.BatchNorm1d(2).requires_grad_(False)))
    assert not has_batch_norm(nn.InstanceNorm1d(2, track_running_stats=True))
    assert has_dropout(nn.Sequential(linear, nn.Dropout2d(0.1)))
    assert has_dropout(prepare_training(nn.Sequential(linear, nn.Dropout(0.1))))
    assert not has_dropout(nn.Sequential(linear, nn.Dropout(0.0)))


def flip_bit(value: Tensor) -> None:
    raw = value.detach().view(-1).view(torch.uint8)
    raw[0] ^= 1


@pytest.mark.parametrize("name", names(list_carried(Net())))
def test_one_bit_of_anything_carried_changes_the_digest(name):
    net = Net()
    before = digest_carried(net)
    flip_bit(dict(list_carried(net))[name])
    assert digest_carried(net) != before


def test_what_is_trained_does_not_change_the_digest():
    net = Net()
    before = digest_carried(net)
    unflatten(flatten(net) + 1, net)
    assert digest_carried(net) == before
    assert len(before or "") == 64
    assert digest_carried(nn.Linear(2, 2)) is None


def test_the_digest_knows_names_types_and_shapes():
    def carry(name: str, value: Tensor) -> str | None:
        module = nn.Module()
        module.register_buffer(name, value)
        return digest_carried(module)

    zeros = torch.zeros(4)
    others = [carry("b", zeros), carry("a", zeros.view(2, 2)), carry("a", zeros.view(torch.int32))]
    assert len({carry("a", zeros), *others}) == 4
    assert carry("a", zeros) == carry("a", torch.zeros(2, 4).T[:, 0])


class FromTorch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand(1)


class FromNumpy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + float(np.random.rand())  # noqa: NPY002


class FromPython(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + random.random()


DRAWING = {"torch": FromTorch, "numpy": FromNumpy, "Python": FromPython}


def read_generators() -> list[object]:
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002
    return [
        torch.default_generator.get_state().tolist(),
        kind,
        np.asarray(keys).tolist(),
        rest,
        random.getstate(),
    ]


@pytest.mark.parametrize("kind", DRAWING)
def test_the_innermost_layer_that_draws_is_named_and_the_generators_are_restored(kind):
    inner = nn.Sequential(nn.Linear(2, 2), DRAWING[kind]())
    net = nn.Sequential(nn.Linear(2, 2), inner)
    before = read_generators()
    with watch_layers(net) as drew:
        net(torch.ones(1, 2))
    name = f"layer 1.1 ({DRAWING[kind].__name__})"
    assert drew == [name, "layer 1 (Sequential)", "layer (the module itself) (Sequential)"]
    assert read_generators() == before
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in net.modules())


def test_draws_outside_the_module_are_the_losss_or_the_augmentations():
    net = nn.Linear(2, 2)
    with watch_layers(net) as drew:
        net(torch.rand(1, 2))
    assert drew == ["the loss, the augmentation or the backward pass"]


def test_keyed_draws_are_no_draws():
    net = prepare_training(Net())
    with draw_at(0), watch_layers(net) as drew:
        net(torch.ones(3, 2))
    assert drew == []


def test_the_generators_are_restored_after_an_error():
    net = nn.Sequential(FromTorch(), FromNumpy(), FromPython(), nn.Linear(3, 3))
    before = read_generators()
    with pytest.raises(RuntimeError), watch_layers(net):
        net(torch.ones(1, 2))
    assert read_generators() == before
