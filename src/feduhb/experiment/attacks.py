"""The attacks of an audit: the same examples asked of the audited model, the original and Retrain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from feduhb.core.types import ClientId
from feduhb.data.federation import Examples, Federation
from feduhb.data.request import Request
from feduhb.errors import DataError
from feduhb.evaluate.accuracy import outputs
from feduhb.evaluate.backdoor import triggered
from feduhb.evaluate.membership import loss_scores
from feduhb.evaluate.misr import SAYS, misr
from feduhb.evaluate.proportions import difference
from feduhb.evaluate.roc import Roc, Scores, power, roc
from feduhb.evaluate.verdicts import Finding, backdoor, membership
from feduhb.experiment.audited import Attack, BackdoorFound, Misr
from feduhb.experiment.bench import Bench, called
from feduhb.experiment.measures import compared
from feduhb.experiment.runs import Run
from feduhb.experiment.shadows import Candidates, Shadows, asked, shadows

ALL, CANARIES, REHEARSED = "all forgotten data", "canaries", ", in a rehearsal"
DRAWS = 2000  # of the bootstrap


@dataclass(frozen=True, slots=True)
class Stage:
    """Three models of one world, and the examples to ask them about."""

    federation: Federation
    models: Mapping[str, Run]  # "unlearned", "original", "retrain"
    members: Mapping[ClientId, Examples]
    others: Mapping[ClientId, Examples]
    rehearsal: bool = False

    @classmethod
    def of(
        cls, federation: Federation, request: Request, models: Mapping[str, Run], *, rehearsal: bool = False
    ) -> Stage:
        """Set a stage for what a request takes away."""
        return cls(federation, models, *compared(federation, request), rehearsal)

    @property
    def canaries(self) -> tuple[dict[ClientId, Examples], dict[ClientId, Examples]]:
        """Members and others that are canaries, of clients that have both."""
        found = [(c, e.canaries, self.others[c].canaries) for c, e in self.members.items()]
        both = [(c, members, others) for c, members, others in found if len(members) and len(others)]
        return {c: members for c, members, _ in both}, {c: others for c, _, others in both}

    def called(self, what: str) -> str:
        """How some examples of this stage are called."""
        return what + REHEARSED if self.rehearsal else what


def loss_attacks(stage: Stage, margin: float, seed: int) -> list[tuple[Attack, Finding]]:
    """Threshold the loss: on everything forgotten where it is the real data, and on the canaries."""
    found = [] if stage.rehearsal or not stage.members else [(ALL, stage.members, stage.others)]
    if stage.canaries[0]:
        found.append((CANARIES, *stage.canaries))
    return [
        _judged(
            stage, "loss", on, {n: _loss(r, members, others, seed) for n, r in stage.models.items()}, margin
        )
        for on, members, others in found
    ]


def lira_attacks(
    stage: Stage, bench: Bench, likes: Mapping[str, Run], count: int, margin: float, seed: int
) -> list[tuple[Attack, Finding]]:
    """Ask shadow models: those of the audited run's own method about it, those of FedAvg about the controls.

    ``likes`` are the runs whose methods the shadows take: "unlearned" and "retrain". Shadows alike are made once.
    """
    candidates = Candidates(stage.members, stage.others)
    made: dict[str, Shadows] = {}
    for name, run in likes.items():
        word = f"shadow-{called(run)}"
        if word not in bench.shadows:
            bench.shadows[word] = shadows(bench, stage.federation, candidates, run, word, count)
        made[name] = bench.shadows[word]
    made["original"] = made["retrain"]
    said = {name: asked(run, candidates) for name, run in stage.models.items()}
    parts = [False, True] if stage.canaries[0] else [False]
    found = (_lira(stage, made, said, canaries, margin, seed) for canaries in parts)
    return [one for one in found if one is not None]


def _lira(
    stage: Stage,
    made: Mapping[str, Shadows],
    said: Mapping[str, Mapping[ClientId, Tensor]],
    canaries: bool,
    margin: float,
    seed: int,
) -> tuple[Attack, Finding] | None:
    """Judge LiRA; None where too few examples were ever inside a shadow."""
    strata = {name: made[name].attack(said[name], canaries=canaries) for name in said}
    if not all(strata.values()):
        return None
    tested = made["unlearned"].test(canaries=canaries)
    rocs = {name: _roc(scores, seed) for name, scores in strata.items()}
    on = CANARIES if canaries else ALL
    return _judged(stage, "LiRA", on, rocs, margin, _roc(tested, seed) if tested else None)


def _judged(
    stage: Stage,
    attack: str,
    on: str,
    rocs: Mapping[str, Roc],
    margin: float,
    self_test: Roc | None = None,
) -> tuple[Attack, Finding]:
    finding = replace(membership(rocs, margin), rehearsed=stage.rehearsal)
    able = power(rocs["unlearned"].se, margin)
    found = Attack(attack, stage.called(on), finding.verdict, finding.says, margin, able, rocs, self_test)
    return found, replace(finding, says=f"{attack[0].upper()}{attack[1:]} on {found.on}. {finding.says}")


def _loss(
    run: Run, members: Mapping[ClientId, Examples], others: Mapping[ClientId, Examples], seed: int
) -> Roc:
    return _roc(loss_scores(run.model(), members, others, run.federation.loss), seed)


def _roc(strata: list[Scores], seed: int) -> Roc:
    return roc(strata, seed=seed, draws=DRAWS)


def misr_of(stage: Stage, request: Request, notes: list[str]) -> Misr | None:
    """Measure MISR on the real data; None, and a note, where there is too little of it."""
    gone = torch.cat([examples.all()[0] for examples in stage.federation.forgotten(request).values()])
    test = stage.federation.test.all()[0]
    models = {name: run.model() for name, run in stage.models.items()}
    said = {name: (outputs(model, gone), outputs(model, test)) for name, model in models.items()}
    try:
        return Misr(misr(said, seed=stage.federation.seed), SAYS)
    except DataError as error:
        notes.append(f"MISR was not measured: {error}.")
        return None


def backdoor_of(stage: Stage, request: Request, margin: float) -> tuple[BackdoorFound, Finding] | None:
    """Measure the trigger's success over the floor; None where nobody who is there planted one."""
    bait, planted = triggered(stage.federation), stage.federation.backdoor
    carriers = set() if planted is None else {*planted.clients} & {*stage.federation.clients}
    if bait is None or not carriers:
        return None
    hits = {
        name: outputs(run.model(), bait[0]).argmax(dim=1) == bait[1] for name, run in stage.models.items()
    }
    over = {name: difference(hits[name], hits["retrain"]) for name in ("unlearned", "original")}
    success = {name: float(hit.double().mean()) for name, hit in hits.items()}
    finding = backdoor(
        over["unlearned"],
        over["original"],
        floor=success["retrain"],
        floored=carriers <= {*request.clients},
        margin=margin,
    )
    found = BackdoorFound(len(bait[1]), success, over["unlearned"], finding.verdict, finding.says)
    return found, replace(finding, says=f"Backdoor. {finding.says}")
