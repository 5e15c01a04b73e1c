"""The result of an audit: plain values that can be printed, written as audit.json and read again, without torch."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, astuple, dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, TypeAdapter, ValidationError

from feduhb.errors import RunFolderError
from feduhb.runs.files import read_file
from feduhb.runs.scores import format_change, format_score, is_share, name_score

FILE = "audit.json"  # in the folder of an audited run
DIGITS = 300  # of a whole number, at most: more would not become a float
UNLEARNED, ORIGINAL, RETRAIN = "unlearned", "original", "retrain"
MODELS = (ORIGINAL, RETRAIN, UNLEARNED)
COMPARED = ("again", "noise", "never")  # checks that two runs have equal weights
OF_METHOD = ("beginning", "draw", "bare", "nudge")  # checks of what a method does, not of equal weights
NAMES = {UNLEARNED: "audited", ORIGINAL: "original", RETRAIN: "Retrain"}

Outcome = Literal["caught", "not caught", "no power here", "inconclusive"]  # of one attack
Word = Literal["forgotten", "not caught", "not forgotten", "useless", "inconclusive"]  # of a verdict

T = TypeVar("T")


def _check_models(found: Mapping[str, T]) -> Mapping[str, T]:
    """Return the table; raise ValueError if one of the three models is missing, or another is there."""
    if missing := [model for model in MODELS if model not in found]:
        raise ValueError(f"lacks {missing[0]}")
    return _check_names(found)


def _check_names(found: Mapping[str, T]) -> Mapping[str, T]:
    if strange := [model for model in found if model not in MODELS]:
        raise ValueError(f"has a model {strange[0]!r}")
    return found


ByModel = Annotated[Mapping[str, T], AfterValidator(_check_models)]  # one value for each of `MODELS`
ForSome = Annotated[Mapping[str, T], AfterValidator(_check_names)]  # one value for some of them


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval. It holds for other draws of the same clients' examples, unless it says otherwise."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference of two shares with its confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Roc:
    """The success of an attack. Chance is an AUC of 0.5."""

    auc: float
    se: float  # standard error
    interval: Interval  # 99 %
    equivalence: Interval  # 90 %, for two one-sided tests at 5 %
    tpr_1: float  # true positives at 1 % false positives
    tpr_1_interval: Interval  # 99 %
    tpr_01: float  # at 0.1 %
    tpr_01_interval: Interval
    members: int
    others: int
    population: Interval | None = None  # 99 %, for other clients than these; None for one client


@dataclass(frozen=True, slots=True)
class AucDifference:
    """The AUC of one model minus that of another on the same examples: a paired test."""

    value: float
    se: float  # standard error
    interval: Interval  # 99 %
    equivalence: Interval  # 90 %
    population: Interval | None = None  # 99 %, for other clients than these; None for one client


@dataclass(frozen=True, slots=True)
class Kept:
    """What the original reveals of the forgotten examples to somebody who keeps it beside another model."""

    models: ByModel[Roc]  # "original": beside itself one round later, where nothing was removed
    against_retrain: AucDifference  # beside the audited model, minus beside Retrain


@dataclass(frozen=True, slots=True)
class Attack:
    """A membership attack on the three models."""

    attack: str
    on: str  # which examples, in words
    verdict: Outcome
    says: str
    margin: float
    power: float  # chance that a model that remembers nothing passes the equivalence test
    models: ByModel[Roc]
    self_test: Roc | None = None  # LiRA on its own shadows
    canaries: bool = False  # whether the examples are canaries alone
    # Whether it attacked the recorded procedure, with canaries, not the audited weights.
    rehearsal: bool = False
    # The audited model's AUC minus Retrain's; earlier versions wrote none.
    against_retrain: AucDifference | None = None
    kept: Kept | None = None  # of an attack that compares two models


@dataclass(frozen=True, slots=True)
class Forecast:
    """The power of the attacks on some examples, which is known before anything is trained."""

    on: str  # which examples, in words
    clients: int
    members: int
    others: int
    margin: float
    power: float  # chance, at least, that a model that remembers nothing passes the equivalence test
    wanted: float  # power
    needed_members: int  # for the wanted power, with the clients' shares and the members' share as they are
    needed_others: int
    says: str


@dataclass(frozen=True, slots=True)
class MisrRates:
    """How often an attacker calls an example a member."""

    misr: float  # share of the forgotten data
    on_test: float  # share of the test data


@dataclass(frozen=True, slots=True)
class Misr:
    """The paper's measure, with a sentence on how to read it."""

    attackers: Mapping[str, ByModel[MisrRates]]
    says: str


@dataclass(frozen=True, slots=True)
class BackdoorAttack:
    """How often the trigger works on test images of other classes than its target."""

    images: int
    success: ByModel[float]
    difference: Difference  # the audited model's success minus Retrain's
    verdict: Outcome
    says: str


@dataclass(frozen=True, slots=True)
class Check:
    """One check of exactness: a run repeated in another world and compared, or the method's beginning."""

    name: Literal["again", "noise", "never", "failed", "beginning", "draw", "bare", "nudge", "traces"]
    says: str
    identical: bool  # whether it was passed; for the first three, whether the weights have the same bits
    largest_difference: float  # of any weight
    skipped: bool = False  # whether it could not be made here

    @property
    def outcome(self) -> str:
        """The outcome in one word, or two."""
        if self.skipped:
            return "not made"
        words = ("identical", "different") if self.name in COMPARED else ("passed", "failed")
        return words[0] if self.identical else words[1]


@dataclass(frozen=True, slots=True)
class Exactness:
    """Whether the weights equal, bit for bit, those of a world without the forgotten data."""

    exact: bool
    checks: tuple[Check, ...]

    @property
    def unexplained(self) -> bool:
        """Whether the recorded procedure does not give the audited weights."""
        return any(check.name in {"again", "failed"} and not check.identical for check in self.checks)

    @property
    def unsearched(self) -> bool:
        """Whether the weights of the user's own code could not be searched for traces of the original."""
        return any(check.name == "traces" and check.skipped for check in self.checks)

    @property
    def fails_by_method(self) -> bool:
        """Whether a check of the method failed: it does not begin afresh, or knows more than its clients can have taught it."""
        return any(check.name in OF_METHOD and not check.identical for check in self.checks)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of an audit."""

    word: Word
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Values:
    """What a model has on three kinds of data: an accuracy, a mean loss or another score.

    None where it is not defined: an accuracy of targets that are not labels, a loss that is not finite, an AUROC of examples
    of one class.
    """

    forgotten: float | None
    retained: float | None
    test: float | None


@dataclass(frozen=True, slots=True)
class Scored:
    """A score of the three models, and whether more ("high") or less of it is better."""

    best: Literal["high", "low"]
    models: ByModel[Values]


@dataclass(frozen=True, slots=True)
class ClientRow:
    """The main score of one remaining client under the original, the audited model and Retrain."""

    client: str
    examples: int
    before: float | None
    after: float | None
    retrain: float | None


@dataclass(frozen=True, slots=True)
class Clients:
    """The main score of every remaining client."""

    on: str  # "held-out data" or "training data"
    rows: tuple[ClientRow, ...]


@dataclass(frozen=True, slots=True)
class Distance:
    """The distance of a model w to a reference v. It does not show by itself whether anything was forgotten."""

    l2: float  # ‖w - v‖
    cosine: float  # w'v / (‖w‖ ‖v‖); 0 if w or v is 0
    kl: float | None  # mean KL(reference ‖ model) of the predictions, in nats; None for numbers
    disagreement: float | None  # share of labels that are predicted differently; None for numbers
    rms: float | None = None  # root of the mean squared difference of numbers; None for labels


@dataclass(frozen=True, slots=True)
class Relearn:
    """Rounds of training with all clients until the original's main score on the forgotten data is reached again."""

    goal: float
    most: int
    unlearned: int | None  # None if ``most`` rounds are not enough
    retrain: int | None


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a run. Bytes are payload; seconds include clients and server."""

    rounds: int
    client_epochs: int
    bytes_down: int
    bytes_up: int
    history_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """A verdict with everything that it rests on."""

    method: str
    exact: bool  # whether the method claims to be exact
    forgot: str
    seed: int
    weights_sha256: str
    verdict: Verdict
    exactness: Exactness | None
    membership: tuple[Attack, ...]
    misr: Misr | None
    backdoor: BackdoorAttack | None
    accuracy: ByModel[Values]
    clients: Clients
    distance: ForSome[Distance]  # of the other two models to Retrain
    relearn: Relearn | None
    cost: ByModel[Cost]
    notes: tuple[str, ...] = ()
    forecast: tuple[Forecast, ...] = ()  # made before the attacks; earlier versions made none
    seeds: Mapping[str, int] = field(default_factory=dict)  # of each model; earlier versions wrote none
    # The method with a digest of its settings, rounds and stop rule; earlier versions wrote none.
    procedure: str = ""
    loss: ForSome[Values] = field(default_factory=dict)  # of each model; earlier versions wrote none
    # By name, without the accuracy of labels; earlier versions wrote none.
    scores: Mapping[str, Scored] = field(default_factory=dict)
    # The weights' digests of original and Retrain; earlier versions wrote none.
    controls_sha256: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    finished: str
    seconds: float

    @property
    def main_score(self) -> str:
        """The score of the remaining clients and of relearning: the accuracy of labels, else the first score."""
        return "accuracy" if self._has_labels else next(iter(self.scores))

    @property
    def is_low_best(self) -> bool:
        """Whether less of the main score is better."""
        return not self._has_labels and self.scores[self.main_score].best == "low"

    @property
    def main_values(self) -> Mapping[str, Values]:
        """The main score of each model."""
        return self.accuracy if self._has_labels else self.scores[self.main_score].models

    @property
    def _has_labels(self) -> bool:
        return not self.scores or self.accuracy[UNLEARNED].test is not None

    def as_json(self) -> dict[str, Any]:
        """Return plain values for `json.dumps`."""
        return asdict(self)

    def to_json(self) -> str:
        """Return the text of audit.json."""
        return json.dumps(self.as_json(), indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Audit:
        """Return the audit that `to_json` wrote; raise AuditFormatError with the wrong part if it is not one."""
        try:
            values = _upgrade(json.loads(text, parse_constant=_refuse_constant, parse_int=_read_whole))
            return _adapter().validate_json(json.dumps(values, allow_nan=False), strict=True)
        except RecursionError:
            raise AuditFormatError("it is nested too deeply") from None
        except ValidationError as error:
            raise AuditFormatError(_describe(error)) from None

    def __str__(self) -> str:
        return "\n".join(_lines(self))


class AuditFormatError(ValueError):
    """JSON that is not an audit; the message names the wrong part."""


def read_audit(folder: Path) -> Audit | None:
    """Return the audit in a run folder, or None if it has none; raise RunFolderError if it is damaged."""
    path = folder / FILE
    advice = f"delete it and audit the run again: feduhb audit {folder}"
    try:
        return Audit.from_json(read_file(path, advice).decode())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except AuditFormatError as error:
        raise RunFolderError(f"{path} is damaged, or another version wrote it: {error}; {advice}") from None
    except ValueError:
        raise RunFolderError(f"{path} cannot be read: it is not complete JSON; {advice}") from None


@cache
def _adapter() -> TypeAdapter[Audit]:
    return TypeAdapter(Audit)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _read_whole(digits: str) -> int:
    if len(digits) > DIGITS:
        raise AuditFormatError(f"a number has {len(digits)} digits")
    return int(digits)


def _upgrade(values: Any) -> Any:
    """Fill in the fields of attacks that older versions wrote only in words."""
    attacks = values.get("membership") if isinstance(values, dict) else None
    for attack in attacks if isinstance(attacks, list) else ():
        if isinstance(attack, dict) and isinstance(on := attack.get("on"), str):
            attack.setdefault("canaries", on.startswith("canaries"))
            attack.setdefault("rehearsal", on.endswith("in a rehearsal"))
    return values


def _describe(error: ValidationError) -> str:
    """Return the first part of an audit that is wrong; a missing part is null."""
    first = error.errors(include_url=False)[0]
    where = "the audit" + "".join(f" {k + 1}" if isinstance(k, int) else f", {k}" for k in first["loc"])
    if first["type"] == "value_error":
        return f"{where} {first['ctx']['error']}"  # pyright: ignore[reportTypedDictNotRequiredAccess]
    value = None if first["type"] == "missing" else first["input"]
    return f"{where} is {json.dumps(value)[:40]}"


def _lines(audit: Audit) -> Iterator[str]:
    yield f"{audit.method} without {audit.forgot}: {audit.verdict.word.upper()}"
    yield from (_wrap(reason) for reason in audit.verdict.reasons)
    for attack in audit.membership:
        yield f"\nMembership, {attack.attack} on {attack.on}: {attack.verdict} (power {attack.power:.0%})"
        tested = {} if attack.self_test is None else {"its shadows": attack.self_test}
        for name, roc in [*((NAMES[n], r) for n, r in attack.models.items()), *tested.items()]:
            yield (
                f"  {name:<11} AUC {roc.auc:.3f} [{roc.interval.low:.3f}, {roc.interval.high:.3f}]"
                f"  TPR {roc.tpr_1:.1%} at 1 % FPR, {roc.tpr_01:.1%} at 0.1 %"
            )
        if apart := attack.against_retrain:
            yield (
                f"  AUC(audited) - AUC(Retrain), paired: {apart.value:+.3f} "
                f"[{apart.interval.low:+.3f}, {apart.interval.high:+.3f}]"
            )
        if attack.kept is not None:
            beside = {**NAMES, ORIGINAL: "itself one round later"}
            pairs = (f"{beside[name]} AUC {roc.auc:.3f}" for name, roc in attack.kept.models.items())
            yield f"  Original kept beside: {', '.join(pairs)}"
        yield _wrap(attack.says)
    yield from (f"\n{_wrap(one.says, '')}" for one in audit.forecast)
    if audit.misr:
        yield "\nMISR (as in the paper)          " + "  ".join(f"{NAMES[n]:>15}" for n in audit.accuracy)
        for attacker, found in audit.misr.attackers.items():
            shares = (f"{a.misr:.1%} ({a.on_test:.1%})" for a in (found[n] for n in audit.accuracy))
            yield f"  {attacker:<28}  " + "  ".join(f"{share:>15}" for share in shares)
        yield _wrap("In brackets the rate on test data. " + audit.misr.says)
    if audit.backdoor:
        shares = ", ".join(f"{NAMES[name]} {share:.1%}" for name, share in audit.backdoor.success.items())
        yield f"\nBackdoor: {audit.backdoor.verdict}. {shares}"
        yield _wrap(audit.backdoor.says)
    yield from _list_scores(audit)
    if audit.loss:
        yield "Loss         forgotten  retained      test"
    for name, found in audit.loss.items():
        yield f"  {NAMES[name]:<9}  {'  '.join(_format(loss, '.3g') for loss in astuple(found))}"
    if audit.relearn:
        took = {UNLEARNED: audit.relearn.unlearned, RETRAIN: audit.relearn.retrain}
        again = (f"{NAMES[n]} {_format_rounds(r, audit.relearn.most)}" for n, r in took.items())
        goal = format_score(audit.main_score, audit.relearn.goal)
        yield f"Relearning the forgotten data to {goal}: {', '.join(again)}"
    yield f"Remaining clients, on their {audit.clients.on}: {_format_changes(audit)}"
    yield "\nCost         rounds  client epochs  MB down  MB up  history MB  seconds"
    for name, took in audit.cost.items():
        down, up, history = (size / 1e6 for size in (took.bytes_down, took.bytes_up, took.history_bytes))
        work = f"{took.rounds:6}  {took.client_epochs:13,}  {down:7.0f}  {up:5.0f}  {history:10.0f}"
        yield f"  {NAMES[name]:<9}  {work}  {took.seconds:7.1f}"
    yield from (f"\n{_wrap(note, '')}" for note in audit.notes)


def _list_scores(audit: Audit) -> Iterator[str]:
    """Yield the accuracies, the other scores and the distances to Retrain."""
    has_labels = not audit.scores or audit.accuracy[UNLEARNED].test is not None
    if has_labels:
        yield "\nAccuracy     forgotten  retained      test   to Retrain: L2  cosine  KL (nats)  disagree"
        for name, share in audit.accuracy.items():
            cells = "  ".join(_format(value, ".1%") for value in astuple(share))
            far = audit.distance.get(name)
            yield f"  {NAMES[name]:<9}  {cells}" + (
                f"   {far.l2:>14.3g}{_format_answers(far)}" if far else ""
            )
    for place, (score, found) in enumerate(audit.scores.items()):
        said = "" if found.best == "high" else "   less is better"
        apart = "" if has_labels or place else "\n"
        yield f"{apart}{name_score(score):<11}  forgotten  retained      test{said}"
        for name, values in found.models.items():
            texts = ("–" if value is None else format_score(score, value) for value in astuple(values))  # noqa: RUF001
            yield f"  {NAMES[name]:<9}  {'  '.join(f'{text:>8}' for text in texts)}"
    if not has_labels and audit.distance:
        yield "To Retrain         L2  cosine  answers"
        for name, far in audit.distance.items():
            yield f"  {NAMES[name]:<9}  {far.l2:>8.3g}{_format_answers(far)}"


def _format_answers(far: Distance) -> str:
    """Format a cosine and how far answers are apart: KL and other labels, or the root of the mean squared difference."""
    if far.kl is None or far.disagreement is None:
        return f"  {far.cosine:6.3f}" + ("" if far.rms is None else f"  {far.rms:.3g} RMS")
    return f"  {far.cosine:6.3f}  {far.kl:9.3g}  {far.disagreement:8.1%}"


def _format_changes(audit: Audit) -> str:
    pairs = [(row.before, row.after) for row in audit.clients.rows]
    changes = [after - before for before, after in pairs if before is not None and after is not None]
    score, sign = audit.main_score, -1 if audit.is_low_best else 1
    if not changes:
        return f"no {name_score(score)} to compare"
    better, worse = sum(sign * c > 0 for c in changes), sum(sign * c < 0 for c in changes)
    low, high = (format_change(score, change).replace("−", "-") for change in (min(changes), max(changes)))  # noqa: RUF001
    unit = "points" if is_share(score) else name_score(score)
    return f"{better} of {len(changes)} do better than before, {worse} worse (from {low} to {high} {unit})"


def _format_rounds(rounds: int | None, most: int) -> str:
    if rounds == 0:
        return "never forgotten"
    return f"not within {most} rounds" if rounds is None else f"{rounds} round{'s'[: rounds != 1]}"


def _format(value: float | None, spec: str) -> str:
    return f"{'–' if value is None else format(value, spec):>8}"  # noqa: RUF001


def _wrap(text: str, indent: str = "  ") -> str:
    return textwrap.fill(text, 110, initial_indent=indent, subsequent_indent=indent)
