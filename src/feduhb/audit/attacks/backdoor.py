"""The backdoor: does a planted trigger still work?"""

from __future__ import annotations

from dataclasses import replace

from feduhb.audit.attacks.membership import Models
from feduhb.audit.result import ORIGINAL, RETRAIN, UNLEARNED, BackdoorAttack
from feduhb.audit.statistics import compute_difference
from feduhb.audit.verdict import Finding, judge_backdoor
from feduhb.data.federation import Federation
from feduhb.data.request import Request
from feduhb.engines.scoring import compute_outputs, stamp_test_set


def attack_by_backdoor(
    models: Models, federation: Federation, request: Request, margin: float
) -> tuple[BackdoorAttack, Finding] | None:
    """Return the trigger's success over the floor, Retrain's; None where no client of the federation planted one."""
    bait, planted = stamp_test_set(federation), federation.backdoor
    carriers = set() if planted is None else {*planted.clients} & {*federation.clients}
    if bait is None or not carriers:
        return None
    hits = {
        name: compute_outputs(run.model(), bait[0]).argmax(dim=1) == bait[1] for name, run in models.items()
    }
    over = {name: compute_difference(hits[name], hits[RETRAIN]) for name in (UNLEARNED, ORIGINAL)}
    success = {name: float(hit.double().mean()) for name, hit in hits.items()}
    finding = judge_backdoor(
        over[UNLEARNED],
        over[ORIGINAL],
        floor=success[RETRAIN],
        floored=carriers <= {*request.clients},
        margin=margin,
    )
    found = BackdoorAttack(len(bait[1]), success, over[UNLEARNED], finding.verdict, finding.says)
    return found, replace(finding, says=f"Backdoor. {finding.says}")
