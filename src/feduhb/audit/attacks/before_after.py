"""The attack that unlearning invites: compare two models, by their answers and by their weights.

Anybody who has the model before and the model after can rank examples by how much better the one knows them than the other. The
original knew the forgotten examples, so this finds them even if the method is exact: the *pair* of models leaks. That is why
the attack asks two questions.

- Does the audited model know the forgotten examples? Compare it with Retrain, which never saw them. If the audited model did
  not see them either, then they and held-out examples are exchangeable for both models, and no comparison of the two can
  distinguish them, however good or bad the two models are. The answer counts for the verdict.
- What does the original reveal if somebody keeps it? Compare it with the audited model, and with Retrain: every honest
  method reveals about as much. This does not count, because it depends on how well the new model predicts. It is a reason to delete
  the original.

Reference: Chen et al. 2021, "When machine unlearning jeopardizes privacy".
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from feduhb.audit.attacks.membership import (
    AttackSetup,
    Candidates,
    KnownScores,
    Models,
    choose_device,
    compute_confidences,
    judge,
    load_model,
    to_confidences,
)
from feduhb.audit.result import ORIGINAL, RETRAIN, UNLEARNED, Attack, Kept
from feduhb.audit.statistics import Scores, compare_aucs, compute_roc
from feduhb.audit.verdict import Finding
from feduhb.core.flat import flatten, split
from feduhb.core.inputs import Inputs, call_model, map_tensors
from feduhb.core.local import move_loss
from feduhb.core.modules import list_trained
from feduhb.core.types import Loss
from feduhb.data.federation import Examples
from feduhb.engines.precision import compute_alike
from feduhb.engines.scoring import CPU_CHUNK
from feduhb.errors import ModelError
from feduhb.runs.checkpoint import digest_weights
from feduhb.runs.run import Run

Change = Callable[[nn.Module, nn.Module, Examples, Loss], Tensor]  # of two models, for each example
Strata = dict[str, list[Scores]]  # by model


def attack_by_change(
    setup: AttackSetup, later: Models, margin: float, notes: list[str], known: KnownScores
) -> list[tuple[Attack, Finding]]:
    """Attack all forgotten data (except in a rehearsal) and the canaries by what changed between two models.

    Args:
        later: Retrain and the original, each after one more round with its clients. Between a model and itself one round
            later, nothing was forgotten: these pairs are the controls that must not be caught.
        notes: takes the reason if the weights of this model cannot be compared.
        known: takes the scores of each pair, and gives those that it has. The audits of several runs share their controls' pairs.
    """
    found: list[tuple[Attack, Finding]] = []
    for part, are_canaries in setup.parts:
        for name in CHANGES:
            pairs = _Pairs(part, name, (setup.rehearsal, are_canaries), known)
            try:
                knows, revealed = _score_pairs(setup.models, later, pairs)
            except ModelError as error:
                notes += [str(error)] if str(error) not in notes else []
                continue
            rocs = {model: compute_roc(scores) for model, scores in revealed.items()}
            kept = Kept(rocs, compare_aucs(revealed[UNLEARNED], revealed[RETRAIN]))
            attack, finding = judge(setup, name, knows, margin, canaries=are_canaries)
            found.append((replace(attack, kept=kept, says=f"{attack.says} {_describe(kept)}"), finding))
    return found


def explain_pair(attacks: Sequence[Attack]) -> list[str]:
    """Return a sentence on why the original must go, with the AUC of the attack that shows it best, if one does."""
    telling = [(a.kept.models, a) for a in attacks if a.kept is not None and _reveals(a.kept)]
    if not telling:
        return []
    models, attack = max(telling, key=lambda one: one[0][UNLEARNED].auc)
    says = (
        f"The original and this model together reveal which examples were forgotten: {attack.attack} on {attack.on}, AUC "
        f"{models[UNLEARNED].auc:.3f}; the original and Retrain, {models[RETRAIN].auc:.3f}. No method can prevent that while the "
        "original exists: retire it (feduhb retire)."
    )
    return [says]


def score_changes(
    before: nn.Module, after: nn.Module, candidates: Candidates, change: Change, loss: Loss
) -> list[Scores]:
    """Return how much more the second model's knowledge of each example changed than its difficulty explains.

        δ_i - c φ_i,   c = Σ (φ_i - mean φ) δ_i / Σ (φ_i - mean φ)²

    δ is the change, φ the first model's confidence, and the sums run over the client's members and others together. An
    example on which the first model happens to be sure loses confidence on average, whatever was forgotten; c takes that
    out. On canaries of mnist-5k this raises the AUC for the original and Retrain from 0.71 to 0.92.
    """
    deltas = _list_scores(candidates, lambda side: change(before, after, side, loss))
    return _take_out_difficulty(
        deltas, _list_scores(candidates, lambda side: compute_confidences(before, side, loss))
    )


def _list_scores(candidates: Candidates, compute: Callable[[Examples], Tensor]) -> list[Scores]:
    """Return a number for each example, client by client."""
    both = ((members, candidates.others[client]) for client, members in candidates.members.items())
    return [Scores(*map(compute, sides)) for sides in both]


def _take_out_difficulty(deltas: Sequence[Scores], confidences: Sequence[Scores]) -> list[Scores]:
    """Return δ - c φ of each client."""
    found: list[Scores] = []
    for each, sides in zip(deltas, confidences, strict=True):
        delta, hardness = (torch.cat([one.members, one.others]) for one in (each, sides))
        hardness -= hardness.mean()
        size = float(hardness.square().sum())
        scores = delta - hardness * (float(hardness @ delta) / size if size else 0.0)
        found.append(Scores(*scores.split([len(each.members), len(each.others)])))
    return found


def compare_answers(before: nn.Module, after: nn.Module, examples: Examples, loss: Loss) -> Tensor:
    """Return φ(after) - φ(before) for each example, [n] in float64; φ as in `compute_confidences`."""
    return compute_confidences(after, examples, loss) - compute_confidences(before, examples, loss)


def compare_weights(before: nn.Module, after: nn.Module, examples: Examples, loss: Loss) -> Tensor:
    """Return (∇φ(v) + ∇φ(w))'(w - v) / 2 for each example, from the weights v before and w after, [n] in float64.

    This is how far the difference of the weights raises the confidence φ, by the slopes at both ends. The slope at one end
    alone would also find what only that model knows: between two trainings on the same data, where nothing was forgotten,
    it has an AUC of 0.8 on canaries of mnist-5k. No example's gradient is stored: the slope is a derivative
    in one direction.
    """
    v, w = flatten(before), flatten(after)
    slopes = [_compute_slopes(model, w - v, examples, loss) for model in (before, after)]
    return (slopes[0] + slopes[1]) / 2


CHANGES: Mapping[str, Change] = {
    "change of confidence": compare_answers,
    "change of weights": compare_weights,
}


class _Pairs(NamedTuple):
    """The examples to score pairs of models on, and the scores that are known."""

    candidates: Candidates
    change: str  # one of `CHANGES`
    which: tuple[bool, bool]  # whether the examples are of a rehearsal, and whether they are its canaries
    known: KnownScores

    def score(self, before: Run, after: Run) -> list[Scores]:
        """Return `score_changes` of two models, computed only once."""
        key = (self.change, *self.which, digest_weights(before.params), digest_weights(after.params))
        if key not in self.known:
            self.known[key] = _take_out_difficulty(
                self._compare(before, after), self._find_confidences(before, after)
            )
        return self.known[key]

    def _compare(self, before: Run, after: Run) -> list[Scores]:
        """Return the change δ of each example."""
        change, loss = CHANGES[self.change], after.federation.loss
        if change is compare_answers:
            pairs = zip(
                self._find_confidences(after, after), self._find_confidences(before, after), strict=True
            )
            return [Scores(new.members - old.members, new.others - old.others) for new, old in pairs]
        pair = load_model(before).to(choose_device(after)), load_model(after)
        return _list_scores(self.candidates, lambda side: change(*pair, side, loss))

    def _find_confidences(self, run: Run, beside: Run) -> list[Scores]:
        """Return the confidences φ of a model on the device of another one, computed only once."""
        device = choose_device(beside)
        key = ("confidence", *self.which, str(device), digest_weights(run.params))
        if key not in self.known:
            model = load_model(run).to(device)
            self.known[key] = _list_scores(
                self.candidates, lambda side: compute_confidences(model, side, beside.federation.loss)
            )
        return self.known[key]


def _score_pairs(models: Models, later: Models, pairs: _Pairs) -> tuple[Strata, Strata]:
    """Return how much better than Retrain each model knows the examples, and how much better than each the original does."""
    retrain, original = models[RETRAIN], models[ORIGINAL]
    afters = {UNLEARNED: models[UNLEARNED], ORIGINAL: original, RETRAIN: later[RETRAIN]}
    known = {name: pairs.score(retrain, after) for name, after in afters.items()}
    befores = {UNLEARNED: models[UNLEARNED], ORIGINAL: later[ORIGINAL], RETRAIN: retrain}
    return known, {name: pairs.score(before, original) for name, before in befores.items()}


def _compute_slopes(model: nn.Module, direction: Tensor, examples: Examples, loss: Loss) -> Tensor:
    """Return the derivative of φ along a direction [P] of the trained parameters for each example, [n] in float64."""
    towards, device = split(direction, model)[: len(list_trained(model))], direction.device
    loss = move_loss(loss, device)
    # For recurrent layers cuDNN has no second derivative.
    is_recurrent = any(isinstance(layer, nn.RNNBase) for layer in model.modules())
    slopes = [torch.zeros(0).double()]
    for some in torch.arange(len(examples)).split(CPU_CHUNK):
        x, y = examples.batch(some)
        x = map_tensors(lambda part: part.to(device), x)
        with compute_alike(device, cudnn=not is_recurrent):
            slopes.append(_compute_slope(model, towards, x, y.to(device), loss).cpu())
    return torch.cat(slopes)


def _compute_slope(model: nn.Module, towards: Sequence[Tensor], x: Inputs, y: Tensor, loss: Loss) -> Tensor:
    """Return dφ/dz'J d, with the outputs z, their derivatives J by the weights, and the direction d.

    J d is the derivative of the linear map u -> d'J'u, so that backward passes alone give it for a whole batch. The weights
    are the trained parameters; statistics of normalisation layers are constants here.
    """
    weights = [p for _, p in list_trained(model)]
    with torch.enable_grad():
        z = call_model(model, x)
        u = torch.zeros_like(z, requires_grad=True)
        with _name_second_derivative():
            pulled = torch.autograd.grad(z, weights, u, create_graph=True, materialize_grads=True)
        mapped = torch.stack([(one * d).sum() for one, d in zip(pulled, towards, strict=True)]).sum()
        with _name_second_derivative():
            [moved] = torch.autograd.grad(mapped, u)
        given = z.detach().requires_grad_()
        [steep] = torch.autograd.grad(to_confidences(given, y, loss).sum(), given)
    each = steep.double() * moved.double()  # [n, k], or [n] if the model has one output
    return each.unsqueeze(-1).flatten(1).sum(dim=1)


@contextlib.contextmanager
def _name_second_derivative() -> Generator[None]:
    """Raise a ModelError if torch has no second derivative of a layer."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # NotImplementedError is one too
        why = str(error).splitlines()[0]
        raise ModelError(
            f"The weights were not compared: torch cannot differentiate this model twice ({why})."
        ) from error


def _reveals(kept: Kept) -> bool:
    """Return whether the original reveals more beside the audited model than by chance, and than if nothing was removed."""
    return kept.models[UNLEARNED].interval.low > max(0.5, kept.models[ORIGINAL].auc)


def _describe(kept: Kept) -> str:
    models, apart = kept.models, kept.against_retrain
    verb = "reveals" if _reveals(kept) else "does not clearly reveal"
    return (
        f"Kept beside this model, the original {verb} the forgotten examples: AUC {models[UNLEARNED].auc:.3f}; beside Retrain "
        f"{models[RETRAIN].auc:.3f} (difference {apart.value:+.3f}, 99 % interval {apart.interval.low:+.3f} to "
        f"{apart.interval.high:+.3f}); beside itself one round later {models[ORIGINAL].auc:.3f}."
    )
