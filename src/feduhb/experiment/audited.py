"""What an audit is: plain values, to be printed, or written as audit.json."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from feduhb.evaluate.distance import Distance
from feduhb.evaluate.misr import Attacked
from feduhb.evaluate.proportions import Difference
from feduhb.evaluate.roc import Roc
from feduhb.evaluate.verdicts import Exactness, Found, Verdict

FILE = "audit.json"  # in the folder of an audited run
NAMES = {"unlearned": "audited", "original": "original", "retrain": "Retrain"}


@dataclass(frozen=True, slots=True)
class Attack:
    """A membership attack on the three models."""

    attack: str
    on: str  # which examples
    verdict: Found
    says: str
    margin: float
    power: float  # chance that the equivalence test passes on a model that remembers nothing
    models: Mapping[str, Roc]
    self_test: Roc | None = None  # LiRA on its own shadows


@dataclass(frozen=True, slots=True)
class Misr:
    """The paper's measure, with what it must be read beside."""

    attackers: Mapping[str, Mapping[str, Attacked]]
    says: str


@dataclass(frozen=True, slots=True)
class BackdoorFound:
    """How often the trigger works on test images that are not of its target."""

    images: int
    success: Mapping[str, float]
    difference: Difference  # the audited model's over the floor, Retrain's
    verdict: Found
    says: str


@dataclass(frozen=True, slots=True)
class Accuracies:
    """Shares of examples whose label a model gives; None where targets are no labels."""

    forgotten: float | None
    retained: float | None
    test: float | None


@dataclass(frozen=True, slots=True)
class ClientRow:
    """One remaining client's accuracy under the original, the audited model and Retrain."""

    client: str
    examples: int
    before: float | None
    after: float | None
    retrain: float | None


@dataclass(frozen=True, slots=True)
class Clients:
    """How everyone who stays fares."""

    on: str  # "held-out data" or "training data"
    rows: tuple[ClientRow, ...]


@dataclass(frozen=True, slots=True)
class Relearn:
    """Rounds of training with everybody until the original's accuracy on the forgotten data is back."""

    goal: float
    most: int
    unlearned: int | None  # None: not within ``most``
    retrain: int | None


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run took. Bytes are payload, seconds those of clients and server."""

    rounds: int
    client_epochs: int
    bytes_down: int
    bytes_up: int
    history_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """A verdict with everything it rests on."""

    method: str
    exact: bool  # what the method claims
    forgot: str
    seed: int
    weights_sha256: str
    verdict: Verdict
    exactness: Exactness | None
    membership: tuple[Attack, ...]
    misr: Misr | None
    backdoor: BackdoorFound | None
    accuracy: Mapping[str, Accuracies]
    clients: Clients
    distance: Mapping[str, Distance]  # to Retrain
    relearn: Relearn | None
    cost: Mapping[str, Cost]
    notes: tuple[str, ...]
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    finished: str
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """Give plain values for `json.dumps`."""
        return asdict(self)

    def to_json(self) -> str:
        """Write as JSON."""
        return json.dumps(self.as_json(), indent=1, allow_nan=False) + "\n"

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _lines(audit: Audit) -> Iterator[str]:
    yield f"{audit.method} without {audit.forgot}: {audit.verdict.word.upper()}"
    yield from (_wrapped(reason) for reason in audit.verdict.reasons)
    for attack in audit.membership:
        yield f"\nMembership, {attack.attack} on {attack.on}: {attack.verdict} (power {attack.power:.0%})"
        tested = {} if attack.self_test is None else {"its shadows": attack.self_test}
        for name, roc in [*((NAMES[n], r) for n, r in attack.models.items()), *tested.items()]:
            yield (
                f"  {name:<11} AUC {roc.auc:.3f} [{roc.interval.low:.3f}, {roc.interval.high:.3f}]"
                f"  TPR {roc.tpr_1:.1%} at 1 % FPR, {roc.tpr_01:.1%} at 0.1 %"
            )
        yield _wrapped(attack.says)
    if audit.misr:
        yield "\nMISR (as in the paper)          " + "  ".join(f"{NAMES[n]:>15}" for n in audit.accuracy)
        for attacker, found in audit.misr.attackers.items():
            shares = (f"{a.misr:.1%} ({a.on_test:.1%})" for a in (found[n] for n in audit.accuracy))
            yield f"  {attacker:<28}  " + "  ".join(f"{share:>15}" for share in shares)
        yield _wrapped("In brackets the rate on test data. " + audit.misr.says)
    if audit.backdoor:
        shares = ", ".join(f"{NAMES[name]} {share:.1%}" for name, share in audit.backdoor.success.items())
        yield f"\nBackdoor: {audit.backdoor.verdict}. {shares}"
        yield _wrapped(audit.backdoor.says)
    yield "\nAccuracy     forgotten  retained      test   to Retrain: L2  cosine  KL (nats)  disagree"
    for name, share in audit.accuracy.items():
        cells = "  ".join(_share(s) for s in (share.forgotten, share.retained, share.test))
        far = audit.distance.get(name)
        apart = (
            f"   {far.l2:>14.3g}  {far.cosine:6.3f}  {far.kl:9.3g}  {far.disagreement:8.1%}" if far else ""
        )
        yield f"  {NAMES[name]:<9}  {cells}{apart}"
    if audit.relearn:
        again = (f"{NAMES[n]} {_within(r, audit.relearn.most)}" for n, r in _relearned(audit.relearn))
        yield f"Relearning the forgotten data to {audit.relearn.goal:.1%}: {', '.join(again)}"
    yield f"Those who stayed, on their {audit.clients.on}: {_fared(audit.clients)}"
    yield "\nCost         rounds  client epochs  MB down  MB up  history MB  seconds"
    for name, took in audit.cost.items():
        megabytes = (
            f"{took.bytes_down / 1e6:7.0f}  {took.bytes_up / 1e6:5.0f}  {took.history_bytes / 1e6:10.0f}"
        )
        yield f"  {NAMES[name]:<9}  {took.rounds:6}  {took.client_epochs:13,}  {megabytes}  {took.seconds:7.1f}"
    yield from (f"\n{_wrapped(note, '')}" for note in audit.notes)


def _fared(clients: Clients) -> str:
    changes = [
        row.after - row.before for row in clients.rows if row.after is not None and row.before is not None
    ]
    if not changes:
        return "no accuracy to compare"
    better, worse = sum(c > 0 for c in changes), sum(c < 0 for c in changes)
    return (
        f"{better} of {len(changes)} do better than before, {worse} worse "
        f"(from {100 * min(changes):+.1f} to {100 * max(changes):+.1f} points)"
    )


def _relearned(relearn: Relearn) -> list[tuple[str, int | None]]:
    return [("unlearned", relearn.unlearned), ("retrain", relearn.retrain)]


def _within(rounds: int | None, most: int) -> str:
    if rounds == 0:
        return "never away"
    return f"not within {most} rounds" if rounds is None else f"{rounds} round{'s'[: rounds != 1]}"


def _share(share: float | None) -> str:
    return f"{'–' if share is None else format(share, '.1%'):>8}"  # noqa: RUF001


def _wrapped(text: str, indent: str = "  ") -> str:
    return textwrap.fill(text, 110, initial_indent=indent, subsequent_indent=indent)
