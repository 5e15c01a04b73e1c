"""The audit of one run: its steps, from exactness through attacks with controls to measures, and its conclusion."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property, partial

import torch

from feduhb.audit.attacks.before_after import attack_by_change, explain_pair
from feduhb.audit.attacks.lira import attack_by_lira
from feduhb.audit.attacks.membership import ALL, CANARIES, REHEARSED, AttackSetup, Candidates, attack_by_loss
from feduhb.audit.attacks.misr import measure_misr
from feduhb.audit.beginning import DOUBTED, UNDRAWN, explain_given_start, explain_start, note_start
from feduhb.audit.client_code import note_client_code
from feduhb.audit.controls import Controls, ShowRound, Step, name_run
from feduhb.audit.exactness import Counterfactuals, find_non_setting, is_fault_of_method
from feduhb.audit.forecast import forecast_power
from feduhb.audit.measures import (
    Measured,
    attack_by_backdoor,
    compute_chance,
    compute_constant_loss,
    compute_relearning_goal,
    continue_training,
    count_relearning_rounds,
    list_clients,
    list_measured,
    measure_cost,
    measure_distances,
    measure_model,
)
from feduhb.audit.own_code import is_ours
from feduhb.audit.result import ORIGINAL, RETRAIN, UNLEARNED, Attack, Audit, Forecast, Relearn, Scored
from feduhb.audit.shadows import ShadowSet
from feduhb.audit.verdict import MARGIN, Finding, explain_useless_loss, explain_uselessness, reach_verdict
from feduhb.data.federation import Federation
from feduhb.errors import ConfigError, FeduhbError
from feduhb.runs.checkpoint import digest_weights
from feduhb.runs.folder import now, versions
from feduhb.runs.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """How thorough an audit is.

    Args:
        exactness: train and unlearn again with noise in place of the forgotten data, and without it from the start.
        canaries: the share of the forgotten examples that a rehearsal of the erasure mislabels, if the federation has
            no canaries of its own; 0 skips the rehearsal.
        shadows: the number of shadow federations for LiRA, which is even; 0 skips LiRA.
        relearn: the largest number of rounds to train the forgotten data back in; 0 skips this.
        margin: an AUC within 0.5 ± margin counts as chance.
    """

    exactness: bool = True
    canaries: float = 0.25
    shadows: int = 0
    relearn: int = 20
    margin: float = MARGIN

    def __post_init__(self) -> None:
        if not 0 <= self.canaries <= 1:
            raise ConfigError(f"canaries is {self.canaries}; give a share of 0 (none) to 1, such as 0.25")
        if self.shadows < 0 or self.shadows % 2 or self.shadows == 2:
            raise ConfigError(
                f"shadows is {self.shadows}; give 0, or an even number of 4 or more, such as 16"
            )
        if self.relearn < 0:
            raise ConfigError(f"relearn is {self.relearn}; give a number of rounds, or 0 to skip relearning")
        if not 0 < self.margin < 0.5:
            raise ConfigError(f"margin is {self.margin}; give a number between 0 and 0.5, such as 0.05")


class RunAudit:
    """The audit of one run: its steps, their findings, and the conclusion."""

    def __init__(self, run: Run, controls: Controls, how: AuditSettings) -> None:
        self.run, self.controls, self.how = run, controls, how
        self.notes: list[str] = []
        self.counterfactuals = self._choose_counterfactuals()
        self.candidates = Candidates.of(controls.federation, controls.request)
        self.rehearsal = self._choose_rehearsal()
        self.shadows = self._choose_shadows()
        self.rehearsed = run  # the run of the audited method in the rehearsal
        self.attacks: list[tuple[Attack, Finding]] = []
        self.main, self.scores = list_measured(controls.federation)

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

    @cached_property
    def forecast(self) -> tuple[Forecast, ...]:
        """The power of the attacks on all forgotten data and on the canaries, which is known before they run."""
        canaries = CANARIES + (REHEARSED if self.rehearsal is not None else "")
        parts = (ALL, self.candidates), (canaries, self._marked_candidates().canaries)
        return tuple(forecast_power(part.sizes, self.how.margin, on=on) for on, part in parts if part.members)

    @property
    def models(self) -> dict[str, Run]:
        """The audited run and its controls."""
        original, retrain = self.controls.train("original"), self.controls.retrain()
        return {UNLEARNED: self.run, ORIGINAL: original, RETRAIN: retrain}

    def _choose_counterfactuals(self) -> Counterfactuals | None:
        if not self.how.exactness:
            return None
        if held := find_non_setting(self.run.method):
            self.notes.append(
                f"Exactness was not checked: the method carries {held!r}, which is not a setting, into every world."
            )
            return None
        return Counterfactuals(self.run, self.controls)

    def _choose_rehearsal(self) -> Federation | None:
        """Return the federation with canaries; None if it already has some, or if none can be planted."""
        if self.candidates.canaries.members or not self.how.canaries or not self.candidates.members:
            return None
        if self.controls.request.classes:
            self.notes.append(
                "Forgetting a class was not rehearsed with canaries, because a mislabelled example is no longer in its class."
            )
            return None
        try:
            return self.controls.make_world("rehearsal")
        except ConfigError as error:
            self.notes.append(f"No canaries were planted: {error}.")
            return None

    def _choose_shadows(self) -> dict[str, ShadowSet]:
        """Return the shadows for each model: trained by the run's own method if it is exact, else by FedAvg."""
        if not self.how.shadows or not self.candidates.members:
            return {}
        controls, run = self.controls, self.run
        retrain = self._share_shadows(RETRAIN, controls.name_retrain(), controls.retrain)
        own = retrain
        if run.method.exact:
            own = self._share_shadows(run.method.name, name_run(run), lambda: run)
        return {UNLEARNED: own, ORIGINAL: retrain, RETRAIN: retrain}

    def _share_shadows(self, method: str, name: str, like: Callable[[], Run]) -> ShadowSet:
        """Return the shadows of this name, which the audits of several runs share."""
        shared = self.controls.shadows
        if name not in shared:
            federation = self.rehearsal or self.controls.federation
            shared[name] = ShadowSet(
                self.controls, federation, self._marked_candidates(), method, f"shadow-{name}", self.how.shadows, like
            )  # fmt: skip
        return shared[name]

    def _marked_candidates(self) -> Candidates:
        """Return the candidates with canaries among them: those of the rehearsal, if there is one."""
        if self.rehearsal is None:
            return self.candidates
        return Candidates.of(self.rehearsal, self.controls.request)

    def _is_exact(self) -> bool:
        """Return whether the checks found an exact method to be exact; before the checks, whether it claims to be."""
        checks = self.counterfactuals
        return self.run.method.exact and checks is not None and not checks.has_differences()

    def _rehearse(self, show: ShowRound) -> None:
        """Serve the request in the rehearsal too. An exact run does not need it: it would give the same weights."""
        try:
            self.rehearsed = self.controls.unlearn_in("rehearsal", self.run, show)
        except FeduhbError as error:
            if not is_fault_of_method(error, self.run):
                raise
            self.notes.append(
                f"The erasure could not be rehearsed: the method failed in a fresh process: {error}"
            )
            self.rehearsal, self.shadows = None, {}

    def _attack(self, show: ShowRound) -> None:  # noqa: ARG002
        margin = self.how.margin
        marked = setup = AttackSetup(self.models, self.candidates)
        known = self.controls.known
        self.attacks += attack_by_loss(setup, margin, known)
        if self.rehearsal is not None:
            models = {**self.models, UNLEARNED: self.rehearsed, ORIGINAL: self.controls.train("rehearsal")}
            marked = AttackSetup(models, self._marked_candidates(), rehearsal=True)
            self.attacks += attack_by_loss(marked, margin, known)
        if self.shadows:
            read = {one: one.read() for one in dict.fromkeys(self.shadows.values())}
            shadows = {model: read[one] for model, one in self.shadows.items()}
            self.attacks += attack_by_lira(marked, shadows, margin)
        for one in [setup] if marked is setup else [setup, marked]:
            later = {name: self._continue(one.models[name]) for name in (ORIGINAL, RETRAIN)}
            self.attacks += attack_by_change(one, later, margin, self.notes, known)
        self.notes += explain_pair([attack for attack, _ in self.attacks])

    def _continue(self, run: Run) -> Run:
        """Return a control after one more round, which the audits of several runs share."""
        continued, key = self.controls.continued, digest_weights(run.params)
        if key not in continued:
            continued[key] = continue_training(run, self.controls.make_engine(run))
        return continued[key]

    def _measure(self, run: Run) -> Measured:
        """Return what is measured of a model alone, which the audits of several runs share."""
        measured, key = self.controls.measured, digest_weights(run.params)
        if key not in measured:
            controls = self.controls
            measured[key] = measure_model(
                run, controls.federation, controls.request, self.main, self.scores, controls.answers
            )
        return measured[key]

    @cached_property
    def _digests(self) -> dict[str, str]:
        return {name: digest_weights(run.params) for name, run in self.models.items()}

    @cached_property
    def _relearning_goal(self) -> float | None:
        return compute_relearning_goal(self.controls.train("original"), self.controls.request, self.main)

    def _must_relearn(self, model: str) -> bool:
        if not {ORIGINAL, RETRAIN} <= self.controls.made.keys():
            return True
        return self._digests[model] not in self.controls.relearned and self._relearning_goal is not None

    def _relearn(self, model: str, show: ShowRound) -> None:
        goal, start, controls = self._relearning_goal, self.models[model].params, self.controls
        assert goal is not None  # noqa: S101 (the step is not needed without a goal)
        original = controls.train("original")
        controls.relearned[self._digests[model]] = count_relearning_rounds(
            goal,
            start,
            original,
            controls.request,
            self.how.relearn,
            show,
            self.main,
            controls.make_engine(original),
        )

    def _conclude_relearning(self) -> Relearn | None:
        goal = self._relearning_goal if self.how.relearn else None
        if goal is None:
            return None
        took = {name: self.controls.relearned[self._digests[name]] for name in (UNLEARNED, RETRAIN)}
        return Relearn(goal, self.how.relearn, took[UNLEARNED], took[RETRAIN])

    def _note_missing_data(self) -> None:
        forgotten, known = self.controls.federation.forgotten(self.controls.request), self.candidates.members
        missing = [client for client in forgotten if client not in known]
        if not known:
            self.notes.append(
                "Membership was not attacked: the leavers have no held-out data to compare with."
            )
        elif missing:
            names = ", ".join(missing)
            self.notes.append(f"Membership was attacked without {names}: no held-out data to compare with.")

    def _explain_process(self) -> str | None:
        """Return why the method ran in this process, or None. Note if it could reach the old runs in a fresh one."""
        name = name_run(self.run)
        if (reason := self.controls.in_reach.get(name)) is not None:
            self.notes.append(
                f"The old run was within reach of the repeated runs, because this system does not hide it from them ({reason}). "
                "A method that reads its files could pass these checks."
            )
        why = self.controls.not_rebuilt.get(name)
        return why and f"The method could not be repeated in a fresh process: {why}."

    def _explain_start(self) -> str | None:
        """Return why the first weights may hold what another run learned, or None."""
        if self.run.federation.start != "given":
            starts, key = self.controls.starts, (id(self.run.federation.model), self.run.seed)
            if key not in starts:  # the audits of several runs share it
                notes: list[str] = []
                starts[key] = explain_start(self.run, self.models[RETRAIN], notes), notes
            why, notes = starts[key]
            self.notes += notes
            return why
        self.notes.append(UNDRAWN)
        if (doubt := explain_given_start(self.run, self.candidates)) is not None:
            self.notes.append(doubt)
        return doubt and DOUBTED

    def conclude(self, notes: tuple[str, ...], started: float) -> Audit:
        """Measure the models; return the audit with its verdict. ``started`` is the time when the steps began."""
        run, models, how = self.run, self.models, self.how
        federation, request = self.controls.federation, self.controls.request
        exactness = None if self.counterfactuals is None else self.counterfactuals.exactness
        self._note_missing_data()
        self.notes += [*note_start(run), *note_client_code(run.federation)]
        answers = self.controls.answers
        backdoor = attack_by_backdoor(models, federation, request, how.margin, answers)
        findings = [finding for _, finding in self.attacks] + ([backdoor[1]] if backdoor else [])
        measured = {name: self._measure(model) for name, model in models.items()}
        accuracy = {name: one.accuracy for name, one in measured.items()}
        loss = {name: one.loss for name, one in measured.items()}
        test, yardstick = accuracy[UNLEARNED].test, accuracy[RETRAIN].test
        has_labels = test is not None
        if test is not None and yardstick is not None:
            waste = explain_uselessness(test, yardstick, compute_chance(federation))
        else:
            waste = explain_useless_loss(
                loss[UNLEARNED].test, loss[RETRAIN].test, compute_constant_loss(federation)
            )
        misr = (
            measure_misr(models, federation, request, self.notes, answers, self.controls.attackers)
            if has_labels and self.controls.misr
            else None
        )
        params = {name: model.params.cpu() for name, model in models.items()}
        is_original = {name: torch.equal(params[name], params[ORIGINAL]) for name in (UNLEARNED, RETRAIN)}
        is_copy = is_original[UNLEARNED] and not is_original[RETRAIN]
        verdict = reach_verdict(
            run.method.exact, exactness, findings, waste, copied=is_copy, own_code=not is_ours(run),
            doubts=[*filter(None, (self._explain_process(), self._explain_start()))],
        )  # fmt: skip
        found = Audit(
            method=run.method.name, exact=run.method.exact, forgot=str(request), seed=run.seed,
            seeds={name: model.seed for name, model in models.items()}, procedure=name_run(run),
            weights_sha256=self._digests[UNLEARNED], verdict=verdict,
            controls_sha256={name: self._digests[name] for name in (ORIGINAL, RETRAIN)},
            exactness=exactness, membership=tuple(attack for attack, _ in self.attacks), misr=misr,
            backdoor=backdoor[0] if backdoor else None, accuracy=accuracy, loss=loss, clients=list_clients(federation, request, measured),
            scores={name: Scored(score.best, {model: one.scores[name] for model, one in measured.items()}) for name, score in self.scores.items()},
            distance=measure_distances(models, federation, answers), relearn=self._conclude_relearning(),
            cost={name: measure_cost(model) for name, model in models.items()}, notes=(*notes, *self.notes), forecast=self.forecast, settings=asdict(how),
            versions=versions(), finished=now(), seconds=time.perf_counter() - started,
        )  # fmt: skip
        controls = {self._digests[ORIGINAL], self._digests[RETRAIN]}
        for key in [one for one in answers if one[1] not in controls]:
            del answers[key]  # the next audit does not need them
        return found
