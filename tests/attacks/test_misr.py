"""MISR on logits drawn by hand: what it sees, and what it only seems to see."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from data.wording import refused
from feduhb.audit.attacks import misr as module
from feduhb.audit.attacks.misr import SAYS, compute_misr
from feduhb.audit.result import MisrRates
from feduhb.errors import ConfigError, DataError

BOTH = ("boosted trees", "logistic regression")
Sides = tuple[Tensor, Tensor]


def logits(labels: Tensor, sharp: float, rng: torch.Generator) -> Tensor:
    """Draw outputs over three classes that favour the label by ``sharp``."""
    return torch.randn(len(labels), 3, generator=rng) + sharp * torch.nn.functional.one_hot(labels, 3)


def drawn(
    seed: int, *, forgotten: float, test: float, m: int = 150, n: int = 300, skew: int | None = None
) -> Sides:
    """Return a model's logits on the forgotten and on test data; ``skew`` is the leavers' only class."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (m,), generator=rng) if skew is None else torch.full((m,), skew)
    return logits(labels, forgotten, rng), logits(torch.randint(3, (n,), generator=rng), test, rng)


MEMORISED = drawn(0, forgotten=8.0, test=2.0)
FRESH = drawn(1, forgotten=2.0, test=2.0)
BLIND = drawn(2, forgotten=0.0, test=0.0, m=200, n=400)


@pytest.fixture(scope="module", autouse=True)
def small_attackers():
    """Leave the attackers as they are."""


@pytest.fixture(scope="module")
def caught() -> dict[str, dict[str, MisrRates]]:
    return compute_misr({"original": MEMORISED, "retrain": FRESH}, seed=0)


def test_one_entry_for_each_attacker_and_model(caught):
    assert tuple(caught) == BOTH
    assert all(tuple(models) == ("original", "retrain") for models in caught.values())
    assert all(type(value.misr) is float for models in caught.values() for value in models.values())


def test_a_memorising_original_is_recognised(caught):
    trees = caught["boosted trees"]["original"]
    assert trees.misr > 0.9
    assert trees.on_test < 0.15


def test_a_model_that_treats_both_alike_scores_its_rate_on_test_data(caught):
    """That rate is far from 0.5: the attacker expects members to be sharper than anything here."""
    for attacker in BOTH:
        found = caught[attacker]["retrain"]
        assert found.misr == pytest.approx(found.on_test, abs=0.12)
    assert caught["boosted trees"]["retrain"].misr < 0.2


@pytest.mark.parametrize("attacker", BOTH)
def test_an_attacker_that_knows_its_own_rows_by_heart_gains_nothing(attacker):
    """Logits are noise. Asked about the rows it was fitted on, the forest would be right far more often than not."""
    found = compute_misr({"original": BLIND}, seed=0)[attacker]["original"]
    assert found.misr == pytest.approx(found.on_test, abs=0.1)
    rows = np.concatenate([side.double().numpy() for side in (BLIND[0], BLIND[1][:200])])
    heart = module._make_attackers(0)["boosted trees"].fit(rows, np.repeat([1, 0], 200)).predict(rows)
    assert heart[:200].mean() - heart[200:].mean() > 0.5


@pytest.mark.slow
def test_permuted_members_give_the_rate_on_test_data_on_average():
    whole = torch.cat([MEMORISED[0], MEMORISED[1][:150]])
    gaps = []
    for seed in range(6):
        order = torch.randperm(300, generator=torch.Generator().manual_seed(seed))
        found = compute_misr({"original": (whole[order[:150]], whole[order[150:]])}, seed=seed)
        gaps.append([found[attacker]["original"] for attacker in BOTH])
    for one in zip(*gaps, strict=True):
        assert sum(a.misr - a.on_test for a in one) / 6 == pytest.approx(0.0, abs=0.08)


def test_an_exact_retrain_of_skewed_leavers_scores_far_from_chance():
    """The leavers hold class 0 alone. No model here has memorised anything, and still they are called members."""
    original, retrain = (drawn(seed, forgotten=3.0, test=3.0, skew=0) for seed in (3, 4))
    for found in compute_misr({"original": original, "retrain": retrain}, seed=0).values():
        assert found["retrain"].misr > 0.75
        assert found["retrain"].misr - found["retrain"].on_test > 0.3
    assert "retrained without the leavers can be far from both" in SAYS


def test_the_sentence_explains_chance():
    assert "a recall" in SAYS
    assert "rate on test data, not 0.5" in SAYS
    assert "not a verdict" in SAYS


def test_same_seed_same_numbers(caught):
    again = compute_misr({"original": MEMORISED, "retrain": FRESH}, seed=0)
    assert again == caught
    assert compute_misr({"original": BLIND}, seed=0) != compute_misr({"original": BLIND}, seed=1)


def test_other_models_do_not_matter_to_a_model(caught):
    alone = compute_misr(
        {"retrain": FRESH, "original": MEMORISED, "noise": drawn(5, forgotten=0.0, test=0.0)}, seed=0
    )
    assert {name: models["retrain"] for name, models in alone.items()} == {
        name: models["retrain"] for name, models in caught.items()
    }


class Watched:
    """An attacker that calls nothing a member, and records the rows that it was fitted on, and those that it predicted."""

    def fit(self, x: np.ndarray, y: np.ndarray) -> None:
        self.seen = (set(x[y == 1, 0]), set(x[y == 0, 0]), set[float]())
        fits.append(self.seen)

    def predict(self, x: np.ndarray) -> np.ndarray:
        self.seen[2].update(x[:, 0])
        return np.zeros(len(x))


fits: list[tuple[set[float], set[float], set[float]]] = []  # of all copies of `Watched`


@pytest.mark.parametrize(("m", "n"), [(20, 50), (50, 23), (17, 17)])
def test_no_example_is_classified_by_an_attacker_that_has_seen_it(m, n, monkeypatch):
    """Every row is its own name: members 0, 1, ..., test examples -1, -2, ..."""
    fits.clear()
    monkeypatch.setattr(module, "_make_attackers", lambda _: {"watched": Watched()})
    names = torch.arange(float(m))[:, None], -1 - torch.arange(float(n))[:, None]
    assert compute_misr({"original": names}, seed=3)["watched"]["original"] == MisrRates(0.0, 0.0)
    asked = [row for _, _, rows in fits for row in rows]
    assert len(fits) == 5
    assert len(asked) == len(set(asked)) == m + n
    for members, others, rows in fits:
        assert not rows & (members | others)
        assert all(row >= 0 for row in members)
        assert len(members) in (m - m // 5, m - m // 5 - 1)
    assert len(set.union(*(others for _, others, _ in fits))) == min(m, n)


def test_few_test_examples_weigh_as_much_as_many_members():
    """Blind logits, five members for every test example: called member no more than half the time or so."""
    many = drawn(6, forgotten=0.0, test=0.0, m=300, n=60)
    found = compute_misr({"original": many}, seed=0)["logistic regression"]["original"]
    assert found.misr == pytest.approx(0.5, abs=0.12)


def test_a_regression_that_does_not_converge_warns_of_nothing(monkeypatch):
    monkeypatch.setitem(module.REGRESSION, "max_iter", 1)
    assert compute_misr({"original": MEMORISED}, seed=0)["logistic regression"]["original"].misr > 0.5


def test_constant_and_huge_logits():
    flat = torch.zeros(20, 3), torch.zeros(20, 3)
    found = compute_misr({"original": flat, "huge": (1e30 * BLIND[0][:20], 1e30 * BLIND[1][:20])}, seed=0)
    assert all(0 <= v.misr <= 1 and 0 <= v.on_test <= 1 for models in found.values() for v in models.values())
    assert found["boosted trees"]["original"].misr == found["boosted trees"]["original"].on_test


def test_nothing_is_drawn_from_the_global_generators():
    before = torch.default_generator.get_state(), str(np.random.get_state())  # noqa: NPY002
    compute_misr({"original": (BLIND[0][:20], BLIND[1][:20])}, seed=0)
    assert torch.equal(before[0], torch.default_generator.get_state())
    assert before[1] == str(np.random.get_state())  # noqa: NPY002


@pytest.mark.parametrize(("m", "n", "words"), [(9, 50, "9 forgotten examples"), (50, 9, "9 test examples")])
def test_too_few_examples(m, n, words):
    small = {"original": (torch.randn(m, 3), torch.randn(n, 3))}
    with refused(DataError, words, "too few for 5 folds; give at least 10, or use fewer folds"):
        compute_misr(small, seed=0)
    assert compute_misr(small, seed=0, folds=2)


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_a_diverged_model_is_refused_by_name(bad):
    broken = FRESH[0].clone()
    broken[3, 1] = bad
    with refused(DataError, "some outputs of retrain are not finite: it has diverged"):
        compute_misr({"original": FRESH, "retrain": (broken, FRESH[1])}, seed=0)


@pytest.mark.parametrize(
    "given",
    [
        {"retrain": FRESH},
        {"original": FRESH, "retrain": (FRESH[0], FRESH[1][:-1])},
        {"original": (FRESH[0], FRESH[1][:, 0])},
    ],
    ids=["no original", "other examples", "not logits"],
)
def test_outputs_that_do_not_belong_together_are_refused(given):
    with refused(DataError, "the outputs have the shapes", "give [m, k] and [n, k] for 'original'"):
        compute_misr(given, seed=0)


def test_too_few_folds():
    with refused(ConfigError, "folds is 1; give 2 or more"):
        compute_misr({"original": FRESH}, seed=0, folds=1)
