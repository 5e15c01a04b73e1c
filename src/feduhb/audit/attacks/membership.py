"""What both membership attacks share: the examples, the three models, and how an attack is judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from feduhb.audit.result import UNLEARNED, Attack, Roc
from feduhb.audit.statistics import Scores, compute_power, compute_roc
from feduhb.audit.verdict import Finding, judge_membership
from feduhb.core.types import ClientId
from feduhb.data.federation import Examples, Federation
from feduhb.data.request import Request
from feduhb.runs.run import Run

ALL, CANARIES, REHEARSED = "all forgotten data", "canaries", ", in a rehearsal"
DRAWS = 2000  # of the bootstrap

Models = Mapping[str, Run]  # by `feduhb.audit.result.MODELS`


@dataclass(frozen=True, slots=True)
class Candidates:
    """The examples an attack is about, by client: members, and others that the real training never saw."""

    members: Mapping[ClientId, Examples]
    others: Mapping[ClientId, Examples]

    @classmethod
    def of(cls, federation: Federation, request: Request) -> Candidates:
        """Return the forgotten examples, and held-out ones of the same clients: of the same class, where a class was forgotten."""
        members = federation.forgotten(request)
        others = {
            client: held
            if client in request.clients or client in request.rows
            else held.where(request.class_mask(held.targets))
            for client, held in federation.held_out.items()
            if client in members
        }
        both = [client for client in members if len(others.get(client, ()))]
        return cls({c: members[c] for c in both}, {c: others[c] for c in both})

    @property
    def canaries(self) -> Candidates:
        """The canaries alone, of clients that have some on both sides."""
        found = [(c, e.canaries, self.others[c].canaries) for c, e in self.members.items()]
        both = [(c, members, others) for c, members, others in found if len(members) and len(others)]
        return Candidates({c: members for c, members, _ in both}, {c: others for c, _, others in both})

    def all(self, client: ClientId) -> tuple[Tensor, Tensor]:
        """Return a client's examples, members first."""
        both = (self.members[client].all(), self.others[client].all())
        return torch.cat([x for x, _ in both]), torch.cat([y for _, y in both])

    def mark_canaries(self, client: ClientId) -> Tensor:
        """Return which of a client's examples [n] are canaries."""
        none = [torch.zeros(len(e), dtype=torch.bool) for e in (self.members[client], self.others[client])]
        given = (self.members[client].marked, self.others[client].marked)
        return torch.cat([n if g is None else g for n, g in zip(none, given, strict=True)])


@dataclass(frozen=True, slots=True)
class AttackSetup:
    """Three models of one world, and the examples to attack them with."""

    models: Models
    candidates: Candidates
    rehearsal: bool = False  # whether the models are of a rehearsal, not the audited ones


def compute_attack_roc(strata: list[Scores], seed: int) -> Roc:
    """Return the ROC with as many draws as an audit takes."""
    return compute_roc(strata, seed=seed, draws=DRAWS)


def judge(
    setup: AttackSetup,
    attack: str,
    rocs: Mapping[str, Roc],
    margin: float,
    *,
    canaries: bool,
    self_test: Roc | None = None,
) -> tuple[Attack, Finding]:
    """Return an attack with its outcome, for the audit and for its verdict."""
    finding = replace(judge_membership(rocs, margin), rehearsed=setup.rehearsal)
    on = (CANARIES if canaries else ALL) + (REHEARSED if setup.rehearsal else "")
    found = Attack(
        attack=attack, on=on, verdict=finding.verdict, says=finding.says, margin=margin,
        power=compute_power(rocs[UNLEARNED].se, margin), models=rocs, self_test=self_test,
        canaries=canaries, rehearsal=setup.rehearsal,
    )  # fmt: skip
    return found, replace(finding, says=f"{attack[0].upper()}{attack[1:]} on {on}. {finding.says}")
