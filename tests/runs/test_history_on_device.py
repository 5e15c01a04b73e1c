"""A history read onto a device is the same history."""

from __future__ import annotations

import torch

from feduhb.runs.history import DiskHistory, HistoryOnDevice
from runs.remembering import drawn, written

W = torch.tensor([1.0, -2.0, 0.5, 3.0])


def test_everything_is_passed_on_but_tensors_are_brought(tmp_path):
    history: DiskHistory = written(tmp_path / "history", {0: [drawn(("a", "b"))], 1: [drawn(("b", "c"))]}, W)
    near = HistoryOnDevice(
        history, torch.device("meta"), history.rounds
    )  # a device whose tensors have a place and no values
    assert near.rounds == history.rounds
    assert near.bytes == history.bytes > 0
    assert near.clients(1) == ("b", "c")
    assert near.params(0).device.type == "meta"
    (block,) = near.read(1, ("c",))
    assert block.clients == ("c",)
    assert block.values.device.type == "meta"
    assert block.weights.device.type == "cpu"


def test_on_the_cpu_it_gives_the_same_bits(tmp_path):
    history = written(tmp_path / "history", {0: [drawn(("a", "b", "c"))]}, W)
    near = HistoryOnDevice(history, torch.device("cpu"), history.rounds)
    assert torch.equal(near.params(0), history.params(0))
    for ours, theirs in zip(near.read(0, ("a", "c")), history.read(0, ("a", "c")), strict=True):
        assert torch.equal(ours.values, theirs.values)
        assert torch.equal(ours.weights, theirs.weights)
