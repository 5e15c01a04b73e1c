"""What membership attacks share, and the loss attack: a model has a smaller loss on what it was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from feduhb.audit.result import RETRAIN, UNLEARNED, Attack, Roc
from feduhb.audit.statistics import Scores, compare_aucs, compute_power, compute_roc
from feduhb.audit.verdict import Finding, judge_membership
from feduhb.core.flat import with_params
from feduhb.core.inputs import Inputs, join_inputs
from feduhb.core.loss import find_counted
from feduhb.core.scores import are_labels
from feduhb.core.types import ClientId, Loss
from feduhb.data.federation import Examples, Federation
from feduhb.data.request import Request
from feduhb.engines.scoring import compute_outputs
from feduhb.runs.checkpoint import digest_weights
from feduhb.runs.run import Run

ALL, CANARIES, REHEARSED = "all forgotten data", "canaries", ", in a rehearsal"

TEST = "test"  # what some answers are of

Models = Mapping[str, Run]  # by `feduhb.audit.result.MODELS`


def load_model(run: Run) -> nn.Module:
    """Return the model of a run on the device where it answers."""
    return with_params(run.federation.fresh_model(), run.params.to(choose_device(run))).eval()


def choose_device(run: Run) -> torch.device:
    """Return where the model of a run answers: on the GPU if its clients trained on one and there is one here."""
    is_there = run.machine.get("device") == "cuda" and torch.cuda.is_available()
    return torch.device("cuda" if is_there else "cpu")


KnownScores = dict[tuple[Any, ...], list[Scores]]  # by what was scored, and by the models' weights
Answers = dict[
    tuple[str, str], Tensor
]  # outputs, by what they are of and by the digest of the model's weights


def compute_answers(run: Run, what: str, x: Inputs, known: Answers) -> Tensor:
    """Return the outputs of a run's model on some inputs, only once computed.

    Args:
        what: names the inputs, the same for the same inputs.
        known: takes the outputs, and gives those that it has.
    """
    key = (what, digest_weights(run.params))
    if key not in known:
        known[key] = compute_outputs(load_model(run), x)
    return known[key]


@dataclass(frozen=True, slots=True)
class Candidates:
    """The examples to attack, by client: members, and others that the real training never saw."""

    members: Mapping[ClientId, Examples]
    others: Mapping[ClientId, Examples]

    @classmethod
    def of(cls, federation: Federation, request: Request) -> Candidates:
        """Return the forgotten examples, and held-out examples of the same clients (and of a forgotten class).

        Examples whose label the loss leaves out are no candidates: no model learns anything from them.
        """
        members = federation.forgotten(request)
        others = {client: held for client, held in federation.held_out.items() if client in members}
        for client in others.keys() - {*request.clients, *request.rows}:
            others[client] = others[client].where(request.class_mask(others[client].targets))
        sides = [
            {c: e.where(find_counted(federation.loss, e.targets)) for c, e in some.items()}
            for some in (members, others)
        ]
        both = [c for c in members if all(len(side.get(c, ())) for side in sides)]
        return cls(*({c: side[c] for c in both} for side in sides))

    @property
    def canaries(self) -> Candidates:
        """The canaries alone, of clients that have some among members and others."""
        found = [(c, e.canaries, self.others[c].canaries) for c, e in self.members.items()]
        both = [(c, members, others) for c, members, others in found if len(members) and len(others)]
        return Candidates({c: members for c, members, _ in both}, {c: others for c, _, others in both})

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """The numbers of members and others of each client."""
        return [(len(members), len(self.others[c])) for c, members in self.members.items()]

    def all(self, client: ClientId) -> tuple[Any, Tensor]:
        """Return a client's examples, members first."""
        both = (self.members[client].all(), self.others[client].all())
        return join_inputs([x for x, _ in both]), torch.cat([y for _, y in both])

    def mark_canaries(self, client: ClientId) -> Tensor:
        """Return for each of a client's examples [n] whether it is a canary."""
        none = [torch.zeros(len(e), dtype=torch.bool) for e in (self.members[client], self.others[client])]
        given = (self.members[client].marked, self.others[client].marked)
        return torch.cat([n if g is None else g for n, g in zip(none, given, strict=True)])


@dataclass(frozen=True, slots=True)
class AttackSetup:
    """Three models of one world, and the examples to attack them with."""

    models: Models
    candidates: Candidates
    rehearsal: bool = False  # whether the models come from a rehearsal

    @property
    def parts(self) -> list[tuple[Candidates, bool]]:
        """All forgotten data (except in a rehearsal) and the canaries, as far as there are any; and whether they are canaries."""
        whole = [] if self.rehearsal else [(self.candidates, False)]
        return [pair for pair in (*whole, (self.candidates.canaries, True)) if pair[0].members]


def judge(
    setup: AttackSetup,
    attack: str,
    strata: Mapping[str, Sequence[Scores]],
    margin: float,
    *,
    canaries: bool,
    self_test: Roc | None = None,
) -> tuple[Attack, Finding]:
    """Return the outcome of an attack, for the result and for the verdict.

    Args:
        strata: for each model the scores of the same examples, client by client.
    """
    rocs = {name: compute_roc(scores) for name, scores in strata.items()}
    apart = compare_aucs(strata[UNLEARNED], strata[RETRAIN])
    finding = replace(judge_membership(rocs, apart, margin), rehearsed=setup.rehearsal)
    on = (CANARIES if canaries else ALL) + (REHEARSED if setup.rehearsal else "")
    found = Attack(
        attack=attack, on=on, verdict=finding.verdict, says=finding.says, margin=margin,
        power=compute_power(min(rocs[UNLEARNED].se, apart.se), margin), models=rocs, self_test=self_test,
        canaries=canaries, rehearsal=setup.rehearsal, against_retrain=apart,
    )  # fmt: skip
    return found, replace(finding, says=f"{attack[0].upper()}{attack[1:]} on {on}. {finding.says}")


def attack_by_loss(
    setup: AttackSetup, margin: float, known: KnownScores | None = None
) -> list[tuple[Attack, Finding]]:
    """Attack all forgotten data (except in a rehearsal) and the canaries by their loss. Reference: Yeom et al. 2018.

    Args:
        known: takes the scores of each model, and gives those that it has. The audits of several runs share their controls'.
    """
    found: list[tuple[Attack, Finding]] = []
    seen = {} if known is None else known
    for part, are_canaries in setup.parts:
        keys = {
            n: ("loss", setup.rehearsal, are_canaries, digest_weights(r.params))
            for n, r in setup.models.items()
        }
        for name, run in setup.models.items():
            if keys[name] not in seen:
                seen[keys[name]] = score_losses(load_model(run), part, run.federation.loss)
        strata = {name: seen[key] for name, key in keys.items()}
        found.append(judge(setup, "loss", strata, margin, canaries=are_canaries))
    return found


def score_losses(model: nn.Module, candidates: Candidates, loss: Loss) -> list[Scores]:
    """Return minus the losses of each client's members and others; leave out clients that lack either."""
    members, others = candidates.members, candidates.others
    both = [client for client in members if len(members[client]) and len(others.get(client, ()))]
    return [Scores(*(-compute_losses(model, side[c], loss) for side in (members, others))) for c in both]


def compute_losses(model: nn.Module, examples: Examples, loss: Loss) -> Tensor:
    """Return each example's loss, [n] in float64, computed as the mean over a batch of one."""
    x, y = examples.all()
    return _losses(compute_outputs(model, x), y, loss)


def compute_confidences(model: nn.Module, examples: Examples, loss: Loss) -> Tensor:
    """Return φ = log(p_y / (1 - p_y)), [n] in float64, if targets are labels, else minus the loss.

    Compute φ as z_y - log Σ_{k ≠ y} exp z_k from the outputs z, which stays precise as p_y nears 1. Over models, φ is
    nearly normally distributed, unlike the loss. Reference: Carlini et al. 2022.
    """
    x, y = examples.all()
    return to_confidences(compute_outputs(model, x), y, loss)


def to_confidences(given: Tensor, y: Tensor, loss: Loss) -> Tensor:
    """Return the confidences φ [n] of `compute_confidences` from a model's outputs."""
    if not are_labels(given, y):
        return -_losses(given, y, loss)
    z, own = given.double(), y.long()[:, None]
    return z.gather(1, own).squeeze(1) - z.scatter(1, own, -torch.inf).logsumexp(dim=1)


def _losses(given: Tensor, y: Tensor, loss: Loss) -> Tensor:
    if loss is cross_entropy and given.dim() == 2:
        return cross_entropy(given.double(), y.double() if y.is_floating_point() else y, reduction="none")
    return torch.stack([loss(given[i : i + 1], y[i : i + 1]) for i in range(len(given))]).double()
