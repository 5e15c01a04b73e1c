"""Exactness of a finished run, checked by counterfactuals: the same run on noise, and without the forgotten data."""

from __future__ import annotations

from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any, Literal

import torch

from feduhb.audit.apart import FailedRunError, ProcessError
from feduhb.audit.beginning import check_beginning
from feduhb.audit.controls import Controls, ShowRound, Step
from feduhb.audit.own_code import OwnCode, is_ours
from feduhb.audit.result import Check, Exactness
from feduhb.core.types import Method
from feduhb.engines import describe_engine
from feduhb.errors import FeduhbError, RunFolderError, StorageError
from feduhb.methods import values_of
from feduhb.methods.binding import uses_old_run
from feduhb.runs.checkpoint import digest_weights
from feduhb.runs.folder import RunFolder
from feduhb.runs.run import Run

NOISE = "Trained and unlearned again, with noise in place of the forgotten data"
NEVER = "In a federation that never held the forgotten data"
AGAIN = "Unlearned again from the same data"


class Counterfactuals:
    """The checks of one run: repeat it with changed data, and compare the weights bit for bit.

    If the weights differ, the request is served again from the real data. That distinguishes a leak of the forgotten data
    from weights that this machine cannot reproduce at all. A method that claims to be exact must also begin at the fresh
    model. `OwnCode` has the checks of code outside this package.
    """

    def __init__(self, run: Run, controls: Controls) -> None:
        self.run, self.controls = run, controls
        self.checks: list[Check] = []

    def steps(self) -> list[Step]:
        """Return the steps of all checks."""
        run, controls, name = self.run, self.controls, self.run.method.name
        steps = [
            controls.train_step("noise"),
            Step(f"noise-{name}: unlearning", self._check_noise, run.scheduled),
            *([controls.train_step("never")] if uses_old_run(run.method) and not run.method.asks_leaver else []),
            # Where nobody ever left, there is no leaver to ask.
            *([] if run.method.asks_leaver else [Step(f"never-{name}", self._check_never, run.scheduled)]),
            Step("history: training", partial(controls.train, "history"), controls.settings.rounds, self._lacks_history),
            Step(f"again-{name}: unlearning", self._check_again, run.scheduled, self.has_differences),
        ]  # fmt: skip
        begin = Step(f"beginning of {name}", self._check_beginning)
        if run.method.exact:
            steps.append(begin)
        if not is_ours(run) and not run.method.asks_leaver:
            steps += OwnCode(run, controls, self.checks).steps()
        here = {begin, *controls.steps.values()}  # without the audited method, or in this process
        return [step if step in here else self._guard(step) for step in steps]

    def _guard(self, step: Step) -> Step:
        """Return a step that adds a failed check if the method fails in it. After that, no guarded step is needed."""

        def work(show: ShowRound) -> None:
            try:
                step.work(show)
            except FeduhbError as error:
                if not is_fault_of_method(error, self.run):
                    raise
                where = "" if self.controls.in_reach else " where the old run is out of reach"
                says = f"The method failed in a fresh process{where} ({step.name}): {error}"
                self.checks.append(Check("failed", says, False, 0.0))

        def is_needed() -> bool:
            return step.is_needed() and not any(check.name == "failed" for check in self.checks)

        return Step(step.name, work, step.rounds, is_needed)

    @property
    def exactness(self) -> Exactness:
        """The outcome of the checks so far."""
        return Exactness(all(check.identical for check in self.checks), tuple(self.checks))

    def has_differences(self) -> bool:
        """Return whether any weights differ; before any comparison, whether the method does not claim to be exact."""
        return not self.exactness.exact if self.checks else not self.run.method.exact

    def _lacks_history(self) -> bool:
        is_made = "history" in self.controls.made
        return self.has_differences() and not is_made and self.controls.lacks_history(self.run)

    def _check_noise(self, show: ShowRound) -> None:
        self._compare("noise", NOISE, self.controls.unlearn_in("noise", self.run, show))

    def _check_never(self, show: ShowRound) -> None:
        never = self.controls.run_in("never", self.run, show, keep_models=not is_ours(self.run))
        self._compare("never", NEVER, never)

    def _check_again(self, show: ShowRound) -> None:
        world = "history" if self.controls.lacks_history(self.run) else "original"
        again = self.controls.unlearn_in(world, self.run, show, name="again")
        self._compare("again", AGAIN, again, describe_machine(self.run))

    def _check_beginning(self, show: ShowRound) -> None:  # noqa: ARG002
        self.checks.append(check_beginning(self.run))

    def _compare(
        self, name: Literal["again", "noise", "never"], what: str, other: Run, where: str = ""
    ) -> None:
        run = self.run
        mine, theirs = run.params.detach().cpu(), other.params.detach().cpu()
        as_long = len(run.rounds) == len(other.rounds)
        if as_long and torch.equal(mine, theirs):
            self.checks.append(Check(name, f"{what}: the same weights, bit for bit.", True, 0.0))
            return
        apart = float((mine.double() - theirs.double()).abs().max())
        rounds = "" if as_long else f" after {len(other.rounds)} rounds, not {len(run.rounds)}"
        says = f"{what}: different weights{rounds}, up to {apart:.2g} apart{where}."
        self.checks.append(Check(name, says, False, apart))


def is_fault_of_method(error: FeduhbError, run: Run) -> bool:
    """Return whether a run's method may have caused an error in a fresh process, and not this package, the machine or the disk."""
    if isinstance(error, ProcessError | StorageError):
        return False
    return isinstance(error, FailedRunError) or not is_ours(run)


def find_non_setting(method: Method[Any]) -> str | None:
    """Return the name of a field that is not a setting, such as stored weights, which could carry forgotten data; or None."""
    return next((name for name, value in values_of(method).items() if not _is_setting(value)), None)


def _is_setting(value: Any) -> bool:
    """Return whether a value is a number, a string, None, or a plain function such as an aggregation rule."""
    if type(value) is partial:
        return all(map(_is_setting, (value.func, *value.args, *value.keywords.values())))
    return value is None or isinstance(value, int | float | str | FunctionType | BuiltinFunctionType)


def describe_machine(run: Run) -> str:
    """Return which engines made the run and the audit, if their bits can differ."""
    if run.folder is None:
        return ""
    before, now = RunFolder(run.folder).config().get("made_by", ""), describe_engine(run.make_engine())
    if before == now:
        return ""
    return f" (the run was made by {before}, this audit by {now}; audit the run where it was made)"


def check_recorded_weights(run: Run) -> None:
    """Raise RunFolderError if the weights are not those that the run's folder records, if it does."""
    if run.folder is None or not (files := RunFolder(run.folder)).is_finished():
        return
    files.check_weights()
    if files.result()["weights_sha256"] != digest_weights(run.params):
        raise RunFolderError(
            f"the weights are not those whose digest {files.result_path} records; audit the run as it ended: open it from its folder"
        )
