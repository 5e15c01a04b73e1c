"""Audits of models with BatchNorm and dropout, of given starts with frozen parts, and of tokens with their masks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import feduhb
from audit.auditing import LEAVERS, QUIET, load_digits
from audit.cheats import InFile, Own, hide, smuggle_statistics
from feduhb.audit.attacks.before_after import compare_weights
from feduhb.audit.attacks.membership import compute_confidences
from feduhb.audit.audit import audit, audit_all
from feduhb.audit.beginning import UNDRAWN, check_beginning
from feduhb.audit.controls import find_floats, nudge, perturb, replace_with_noise
from feduhb.audit.result import Audit
from feduhb.audit.traces import find_units
from feduhb.audit.verdict import UNSEARCHED
from feduhb.core.flat import draw_model, flatten, list_parts, with_params
from feduhb.data.canaries import plant_canaries
from feduhb.data.federation import Examples
from feduhb.data.request import Request
from feduhb.errors import ConfigError, RunFolderError
from feduhb.runs.run import Run
from feduhb.runs.start import DECLARED, SHARED_START

HOW: dict[str, Any] = {"epochs": 2, "batch_size": 10, "lr": 0.1, "engine": "loop", "show": None}
CHEAP: dict[str, Any] = {**QUIET, "canaries": 0}
STATISTICS = 64  # of 32 units


def make_norm_model() -> nn.Module:
    layers = nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10)
    return nn.Sequential(nn.Flatten(), *layers)


def unlearn(trained: Run, method: Any = "feduhb", **more: Any) -> Run:
    asked = {"rounds": 4, "stop": feduhb.never, "show": None, "erase_history": False, **more}
    return feduhb.unlearn(trained, LEAVERS, method=method, **asked)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Run:
    federation = load_digits(model=make_norm_model, per_client=40)
    return feduhb.train(federation, 4, keep_history=True, out=tmp_path_factory.mktemp("norm") / "run", **HOW)


@pytest.fixture(scope="module")
def audits(trained) -> dict[str, Audit]:
    """The audits of an honest exact run, of FedEraser, and of a run into which old statistics were smuggled."""
    folder = trained.folder.parent
    file = hide(trained.params[-STATISTICS:].clone(), folder)
    runs = [
        unlearn(trained),
        unlearn(trained, "federaser"),
        unlearn(trained, engine=partial(smuggle_statistics, file=file)),
    ]
    ours = audit_all(runs[:2], trained, **CHEAP)
    cheat = audit(runs[2], trained, **CHEAP)
    return {"feduhb": ours[0], "federaser": ours[1], "smuggled": cheat}


def test_an_honest_run_with_batch_norm_and_dropout_is_exact(audits):
    found = audits["feduhb"]
    assert [check.name for check in found.exactness.checks] == ["noise", "never", "beginning"]
    assert found.exactness.exact
    assert found.verdict.word == "forgotten"
    assert {attack.attack for attack in found.membership} == {
        "loss",
        "change of confidence",
        "change of weights",
    }
    assert [note for note in found.notes if "together reveal" not in note] == []


def test_an_approximate_method_is_not(audits):
    found = audits["federaser"].exactness
    assert [(check.name, check.identical) for check in found.checks] == [
        ("noise", False), ("never", False), ("again", True)
    ]  # fmt: skip


def test_old_statistics_in_the_first_model_are_found(audits):
    """They are the same in every world, so equal weights do not show them."""
    found = audits["smuggled"]
    assert [check.identical for check in found.exactness.checks[:3]] == [True, True, True]
    assert found.verdict.word == "not forgotten"
    assert "after round 1, 2.running_" in found.verdict.reasons[-1]


class OldNorm(nn.BatchNorm1d):
    """A layer that resets its statistics to those of an old model."""

    def reset_running_stats(self) -> None:
        super().reset_running_stats()
        self.running_mean.fill_(3.0)  # pyright: ignore[reportOptionalMemberAccess]


@pytest.mark.parametrize("is_module", [True, False])
def test_a_fresh_model_has_no_statistics_of_a_model(is_module):
    make = partial(nn.Sequential, nn.Linear(4, 3), OldNorm(3))
    drawn = draw_model(make() if is_module else lambda: nn.Sequential(nn.Linear(4, 3), OldNorm(3)), 1)
    assert flatten(drawn)[-6:].tolist() == [0, 0, 0, 1, 1, 1]


def test_units_take_their_statistics_along():
    model = make_norm_model()
    names = [name for name, _ in list_parts(model)]
    units = find_units(model, torch.randn(8, 1, 8, 8))
    assert [{names[place] for place, _ in group.parts} for group in units] == [
        {"1.weight", "1.bias", "2.weight", "2.bias", "2.running_mean", "2.running_var", "5.weight"}
    ]


def test_slopes_are_those_of_the_trained_parameters_in_use(trained):
    """By differences, without dropout and with statistics that stay."""
    models = [model.double().eval() for model in (trained.federation.fresh_model(), trained.model())]
    x, y = trained.federation.test.batch(torch.arange(5))
    examples, loss = Examples.of(x.double(), y), trained.federation.loss
    towards = flatten(models[1]) - flatten(models[0])
    towards[-STATISTICS:] = 0

    def measure(model: nn.Module, step: float) -> Tensor:
        return compute_confidences(with_params(model, flatten(model) + step * towards), examples, loss)

    slopes = [(measure(model, 1e-6) - measure(model, -1e-6)) / 2e-6 for model in models]
    torch.testing.assert_close(
        compare_weights(models[0], models[1], examples, loss), (slopes[0] + slopes[1]) / 2
    )


# A given start, with a frozen part


class Tuned(nn.Module):
    """A frozen backbone with a table of constants, and a head to train."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Linear(64, 16).requires_grad_(False)
        self.register_buffer("shift", torch.linspace(0, 1, 16))
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.backbone(x.flatten(1)) + self.shift).relu())


def make_tuned() -> Tuned:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Tuned()


def load_given(model: nn.Module) -> feduhb.Federation:
    federation = load_digits(model=make_norm_model, per_client=40)
    return federation.replace(model=model, start="given", about=None)


@pytest.fixture(scope="module")
def given() -> tuple[Run, Run]:
    trained = feduhb.train(load_given(make_tuned()), 4, optimizer="adam", **{**HOW, "lr": 0.01})
    return trained, unlearn(trained, rounds=6)


def test_a_given_start_can_be_forgotten_from_and_its_declaration_is_noted(given):
    trained, run = given
    found = audit(run, trained, **CHEAP)
    assert found.verdict.word == "forgotten"
    assert found.exactness is not None
    assert found.exactness.checks[2].says == (
        "Given the start of the run, and this start after noise was added to it: the method begins there, bit for bit."
    )
    declared, carried, *others = found.notes
    digest = feduhb.runs.checkpoint.digest_weights(flatten(run.federation.fresh_model()))
    assert declared == f"The start was given, not drawn (SHA-256 {digest}): {DECLARED}. {SHARED_START}"
    assert carried.startswith(
        "Carried as given, never drawn: backbone.bias, backbone.weight, shift (SHA-256 "
    )
    assert UNDRAWN in others


def test_a_start_that_knows_the_leavers_is_not_believed():
    """Somebody declares the old model as public: it memorized the leavers' data."""
    federation = load_given(nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    old = feduhb.train(federation, 8, **{**HOW, "epochs": 10, "lr": 0.5}).model()
    lied = feduhb.train(federation.replace(model=old), 1, **{**HOW, "lr": 1e-4})
    found = audit(unlearn(lied, rounds=2), lied, **CHEAP)
    assert found.verdict.word == "inconclusive"
    assert any(
        note.startswith("The given start itself knows the forgotten examples better") for note in found.notes
    )


def test_own_code_is_run_from_the_given_start_with_noise(given, tmp_path):
    """Every run has the units in the order of the start, so there are no traces to search for."""
    trained, _ = given
    file = hide(trained.params * (1 + 1e-6), tmp_path)
    honest, cheat = audit_all(
        [unlearn(trained, Own(epochs=2), rounds=6), unlearn(trained, InFile(epochs=2, file=file), rounds=6)],
        trained,
        **CHEAP,
    )
    assert honest.exactness is not None
    assert honest.exactness.exact
    assert [check.name for check in honest.exactness.checks if check.skipped] == ["traces"]
    assert honest.verdict.word == "inconclusive"
    assert honest.verdict.reasons[0] == UNSEARCHED
    assert cheat.verdict.word == "not forgotten"
    assert cheat.verdict.reasons[-1] == (
        "From the given start after noise was added to it: the same weights after round 1, so they do not come from the given start."
    )


def test_controls_have_the_given_start_of_the_run(given):
    trained, run = given
    other = replace(trained, federation=trained.federation.replace(model=Tuned()))
    with pytest.raises(RunFolderError, match="at least one of these starts was given; audit only runs from"):
        audit(run, other, **CHEAP)


def test_a_method_that_begins_elsewhere_than_at_the_given_start_is_found(given):
    class Elsewhere(feduhb.FedUHB):
        __slots__ = ()

        def init(self, params: Tensor) -> Any:
            return super().init(torch.zeros_like(params))

    _, run = given
    assert check_beginning(run).identical
    assert not check_beginning(replace(run, method=Elsewhere(epochs=2))).identical


def test_noise_on_a_given_start_changes_what_is_trained_and_nothing_else():
    one, other = make_tuned(), perturb(make_tuned(), 3)
    assert torch.equal(one.backbone.weight, other.get_parameter("backbone.weight"))
    assert not (flatten(one) == flatten(other)).any()
    assert torch.equal(flatten(other), flatten(perturb(make_tuned(), 3)))


# Tokens and their mask


class Reader(nn.Module):
    """Takes the mean over the tokens that a mask leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 2)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        kept = mask.unsqueeze(-1).to(self.embed.weight.dtype)
        return self.head(self.norm((self.embed(tokens) * kept).sum(1) / kept.sum(1)))


def draw_texts(count: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 7, (count, 1), generator=draw)
    tokens = torch.randint(0, 20, (count, 6), generator=draw)
    return {"tokens": tokens, "mask": torch.arange(6) < lengths}, (tokens[:, 0] > 9).long()


def make_texts(sizes: dict[str, int]) -> feduhb.Federation:
    return feduhb.Federation(
        {client: draw_texts(size, i) for i, (client, size) in enumerate(sizes.items())}, draw_texts(60, 90), Reader, seed=2,
        held_out={client: draw_texts(20, 50 + i) for i, client in enumerate(sizes)},
    )  # fmt: skip


def list_noise(federation: feduhb.Federation, request: Request) -> Iterator[dict[str, Tensor]]:
    for examples in replace_with_noise(federation, request).forgotten(request).values():
        yield examples.all()[0]


@pytest.mark.parametrize("forget", ["ant,bee", "cat:0-9", "class:1"])
def test_noise_of_tokens_are_tokens_and_of_masks_masks(forget):
    federation = make_texts({"ant": 2, "bee": 3, "cat": 24})
    for x in list_noise(federation, Request.parse(forget)):
        assert (x["tokens"].dtype, x["mask"].dtype) == (torch.int64, torch.bool)
        assert int(x["tokens"].min()) >= 0
        assert int(x["tokens"].max()) < 20
        assert bool(x["mask"][:, 0].all())  # no example is hidden
    noisy = replace_with_noise(federation, Request.parse(forget))
    assert min(map(len, noisy.clients.values())) > 1  # BatchNorm needs two
    changed = {
        client
        for client in noisy.clients
        if noisy.fingerprints()[client] != federation.fingerprints()[client]
    }
    assert changed == (
        {"ant", "bee", "cat"} if forget == "class:1" else {c.split(":")[0] for c in forget.split(",")}
    )


def test_whole_numbers_are_not_nudged_and_the_largest_floats_are():
    x = {"ids": torch.zeros(3, 4, dtype=torch.long), "scale": torch.ones(3, 1), "image": torch.ones(3, 9)}
    assert find_floats(x) == 2
    assert find_floats({"ids": x["ids"]}) is None

    def take(image: Tensor, **_: Tensor) -> Tensor:
        return image

    class Taking(nn.Linear):
        def forward(self, **parts: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            return super().forward(take(**parts))

    some = {**x, "image": torch.linspace(0, 1, 27).view(3, 9)}, torch.tensor([0, 1, 1])
    federation = feduhb.Federation({"ant": some}, some, partial(Taking, 9, 2))
    nudged = nudge(federation, "here").clients["ant"].all()[0]
    assert int((nudged["image"] != some[0]["image"]).sum()) == 1
    assert all(torch.equal(nudged[name], x[name]) for name in ("ids", "scale"))


def test_an_audit_of_tokens_with_canaries_shadows_and_relearning():
    federation = make_texts({"ant": 20, "bee": 20, "cat": 24, "dog": 22})
    trained = feduhb.train(federation, 5, **{**HOW, "lr": 0.5})
    run = feduhb.unlearn(trained, ["ant"], rounds=6, stop=feduhb.never, show=None)
    found = audit(run, trained, canaries=0.5, shadows=4, relearn=1, show=None)
    assert found.exactness is not None
    assert found.exactness.exact
    assert found.verdict.word == "forgotten"
    assert {attack.attack for attack in found.membership} >= {"loss", "LiRA", "change of weights"}
    assert any(attack.canaries for attack in found.membership)
    assert found.misr is not None
    assert found.relearn is not None
    assert found.notes == (
        "The model's own code was trusted: it runs at the clients and could hold an old model.",
    )


def test_a_backdoor_in_several_tensors_is_refused():
    federation = make_texts({"ant": 4, "bee": 4}).replace(backdoor=feduhb.Backdoor(("ant",)))
    with pytest.raises(
        ConfigError, match=r"a backdoor needs images .*, not several tensors; train without one"
    ):
        plant_canaries(federation, feduhb.Canaries(("ant",)))
