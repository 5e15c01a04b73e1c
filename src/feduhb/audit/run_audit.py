"""The audit of one run, step by step: exactness, attacks beside their controls, measures, and the verdict."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property, partial

import torch

from feduhb.audit.attacks.backdoor import attack_by_backdoor
from feduhb.audit.attacks.lira import attack_by_lira
from feduhb.audit.attacks.loss import attack_by_loss
from feduhb.audit.attacks.membership import AttackSetup, Candidates
from feduhb.audit.attacks.misr import measure_misr
from feduhb.audit.controls import Controls, name_run
from feduhb.audit.exactness import Counterfactuals, find_carried, has_recorded_weights, is_ours
from feduhb.audit.measures import (
    compute_chance,
    compute_relearning_goal,
    count_relearning_rounds,
    measure_accuracies,
    measure_clients,
    measure_cost,
    measure_distances,
)
from feduhb.audit.result import ORIGINAL, RETRAIN, UNLEARNED, Attack, Audit, Relearn
from feduhb.audit.settings import AuditSettings
from feduhb.audit.shadows import ShadowSet
from feduhb.audit.steps import ShowRound, Step
from feduhb.audit.verdict import Finding, explain_uselessness, reach_verdict
from feduhb.data.federation import Federation
from feduhb.errors import ConfigError
from feduhb.runs.checkpoint import digest_weights
from feduhb.runs.folder import now, versions
from feduhb.runs.run import Run


class RunAudit:
    """The audit of one run: its steps, what they found, and the conclusion."""

    def __init__(self, run: Run, controls: Controls, how: AuditSettings) -> None:
        self.run, self.controls, self.how = run, controls, how
        self.notes: list[str] = []
        if not has_recorded_weights(run):
            self.notes.append("The weights are not those whose digest was recorded when the run ended.")
        self.counterfactuals = self._choose_counterfactuals()
        self.candidates = Candidates.of(controls.federation, controls.request)
        self.rehearsal = self._choose_rehearsal()
        self.shadows = self._choose_shadows()
        self.rehearsed = run  # the audited method's model in the rehearsal
        self.attacks: list[tuple[Attack, Finding]] = []

    def steps(self) -> list[Step]:
        """Return the steps of the audit, in order."""
        run, controls, name = self.run, self.controls, self.run.method.name
        steps = [controls.train_step("original"), controls.retrain_step()]
        if self.counterfactuals is not None:
            steps += self.counterfactuals.steps()
        if self.rehearsal is not None:
            steps.append(controls.train_step("rehearsal"))
            steps.append(
                Step(f"rehearsal-{name}: unlearning", self._rehearse, run.scheduled, lambda: not self._is_exact())
            )  # fmt: skip
        for one in dict.fromkeys(self.shadows.values()):
            steps += one.steps
        steps.append(Step(f"attacks on {name}", self._attack))
        if self.how.relearn:
            for model in (UNLEARNED, RETRAIN):
                work, is_needed = partial(self._relearn, model), partial(self._must_relearn, model)
                steps.append(Step(f"relearning: {model}", work, self.how.relearn, is_needed))
        return steps

    @property
    def models(self) -> dict[str, Run]:
        """The audited run and its controls."""
        return {
            UNLEARNED: self.run,
            ORIGINAL: self.controls.original(),
            RETRAIN: self.controls.retrain(),
        }

    def _choose_counterfactuals(self) -> Counterfactuals | None:
        if not self.how.exactness:
            return None
        if held := find_carried(self.run.method):
            self.notes.append(
                f"The method carries {held!r}, which is no setting: with it inside, a counterfactual run would show nothing."
            )
            return None
        return Counterfactuals(self.run, self.controls)

    def _choose_rehearsal(self) -> Federation | None:
        """Return the federation with canaries planted; None where it has its own, or none can be planted."""
        if self.candidates.canaries.members or not self.how.canaries or not self.candidates.members:
            return None
        if self.controls.request.classes:
            self.notes.append(
                "A mislabelled example is no longer of its class, so forgetting a class was not rehearsed with canaries."
            )
            return None
        try:
            return self.controls.make_world("rehearsal")
        except ConfigError as error:
            self.notes.append(f"No canaries were planted: {error}.")
            return None

    def _choose_shadows(self) -> dict[str, ShadowSet]:
        """Return the shadows to attack each model with: of the run's own method where it is exact, of FedAvg otherwise."""
        if not self.how.shadows or not self.candidates.members:
            return {}
        controls, run = self.controls, self.run
        retrain = self._share_shadows(RETRAIN, controls.name_retrain(), controls.retrain)
        own = (
            self._share_shadows(run.method.name, name_run(run), lambda: run) if run.method.exact else retrain
        )
        return {UNLEARNED: own, ORIGINAL: retrain, RETRAIN: retrain}

    def _share_shadows(self, method: str, name: str, like: Callable[[], Run]) -> ShadowSet:
        """Return the shadows of that name, which audits of several runs share."""
        shared = self.controls.shadows
        if name not in shared:
            federation = self.rehearsal or self.controls.federation
            shared[name] = ShadowSet(
                self.controls, federation, self._marked_candidates(), method, f"shadow-{name}", self.how.shadows, like
            )  # fmt: skip
        return shared[name]

    def _marked_candidates(self) -> Candidates:
        """Return the candidates of the rehearsal, if there is one: they hold canaries."""
        if self.rehearsal is None:
            return self.candidates
        return Candidates.of(self.rehearsal, self.controls.request)

    def _is_exact(self) -> bool:
        """Return whether an exact method was seen to be exact; before it was checked, what it claims."""
        return (
            self.run.method.exact
            and self.counterfactuals is not None
            and not self.counterfactuals.has_differences()
        )

    def _rehearse(self, show: ShowRound) -> None:
        """Serve the request in the rehearsal too.

        Exact weights do not depend on the forgotten data: they are those of the rehearsal, and this step is not needed.
        """
        self.rehearsed = self.controls.unlearn_in("rehearsal", self.run, show)

    def _attack(self, show: ShowRound) -> None:  # noqa: ARG002
        margin, seed = self.how.margin, self.controls.federation.seed
        marked = setup = AttackSetup(self.models, self.candidates)
        self.attacks += attack_by_loss(setup, margin, seed)
        if self.rehearsal is not None:
            models = {**self.models, UNLEARNED: self.rehearsed, ORIGINAL: self.controls.train("rehearsal")}
            marked = AttackSetup(models, self._marked_candidates(), rehearsal=True)
            self.attacks += attack_by_loss(marked, margin, seed)
        if self.shadows:
            read = {one: one.read() for one in dict.fromkeys(self.shadows.values())}
            shadows = {model: read[one] for model, one in self.shadows.items()}
            self.attacks += attack_by_lira(marked, shadows, margin, seed)

    @cached_property
    def _digests(self) -> dict[str, str]:
        return {name: digest_weights(run.params) for name, run in self.models.items()}

    @cached_property
    def _relearning_goal(self) -> float | None:
        return compute_relearning_goal(self.controls.original(), self.controls.request)

    def _must_relearn(self, model: str) -> bool:
        if not {ORIGINAL, RETRAIN} <= self.controls.made.keys():
            return True
        return self._digests[model] not in self.controls.relearned and self._relearning_goal is not None

    def _relearn(self, model: str, show: ShowRound) -> None:
        goal, start, controls = self._relearning_goal, self.models[model].params, self.controls
        assert goal is not None  # noqa: S101 (else this step is not needed)
        controls.relearned[self._digests[model]] = count_relearning_rounds(
            goal, start, controls.original(), controls.request, self.how.relearn, show
        )

    def _conclude_relearning(self) -> Relearn | None:
        goal = self._relearning_goal if self.how.relearn else None
        if goal is None:
            return None
        took = {name: self.controls.relearned[self._digests[name]] for name in (UNLEARNED, RETRAIN)}
        return Relearn(goal, self.how.relearn, took[UNLEARNED], took[RETRAIN])

    def _note_missing_data(self) -> None:
        missing = [
            client
            for client in self.controls.federation.forgotten(self.controls.request)
            if client not in self.candidates.members
        ]
        if not self.candidates.members:
            self.notes.append(
                "No held-out data of the leavers is there to compare with, so membership was not attacked."
            )
        elif missing:
            self.notes.append(
                f"Of {', '.join(missing)} no held-out data is there to compare with, so membership was attacked on the others alone."
            )

    def conclude(self, limit: tuple[str, ...], started: float) -> Audit:
        """Measure the models, and return the audit with its verdict.

        Args:
            limit: a note on what the audit is about.
            started: the time when the steps began.
        """
        run, models, how = self.run, self.models, self.how
        federation, request = self.controls.federation, self.controls.request
        exactness = None if self.counterfactuals is None else self.counterfactuals.exactness
        self._note_missing_data()
        backdoor = attack_by_backdoor(models, federation, request, how.margin)
        findings = [finding for _, finding in self.attacks] + ([backdoor[1]] if backdoor else [])
        accuracy = {name: measure_accuracies(model, federation, request) for name, model in models.items()}
        test, yardstick = accuracy[UNLEARNED].test, accuracy[RETRAIN].test
        has_labels = test is not None
        waste = (
            None
            if test is None or yardstick is None
            else explain_uselessness(test, yardstick, compute_chance(federation))
        )
        misr = measure_misr(models, federation, request, self.notes) if has_labels else None
        is_copy = torch.equal(run.params.cpu(), models[ORIGINAL].params.cpu()) and not torch.equal(
            models[RETRAIN].params.cpu(), models[ORIGINAL].params.cpu()
        )
        verdict = reach_verdict(
            run.method.exact, exactness, findings, waste, copied=is_copy, own_code=not is_ours(run)
        )
        return Audit(
            method=run.method.name, exact=run.method.exact, forgot=str(request), seed=federation.seed,
            weights_sha256=self._digests[UNLEARNED], verdict=verdict,
            exactness=exactness, membership=tuple(attack for attack, _ in self.attacks), misr=misr,
            backdoor=backdoor[0] if backdoor else None, accuracy=accuracy, clients=measure_clients(models, federation, request),
            distance=measure_distances(models, federation) if has_labels else {}, relearn=self._conclude_relearning(),
            cost={name: measure_cost(model) for name, model in models.items()}, notes=(*limit, *self.notes), settings=asdict(how),
            versions=versions(), finished=now(), seconds=time.perf_counter() - started,
        )  # fmt: skip
