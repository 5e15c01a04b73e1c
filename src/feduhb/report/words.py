"""What a report says in sentences, made from its numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from feduhb.report.runs import ORIGINAL, RETRAIN, RunView, retrain_of

NAMED_AT_MOST = 6  # of what was forgotten; the rest is counted
TOLD_AT_MOST = 3  # runs that a headline tells one by one
ALIKE = 0.05  # seconds that differ by less are called about the same
MACHINERY = ("name", "device", "precision", "threads")  # what an engine's seconds depend on

EXACT = """\
Exact means here: the model was trained again, from fresh weights, by a procedure that never saw the
forgotten data. Nothing of the old model's weights went in.

FedUHB's result is the one that FedUHB itself gives on the remaining clients alone. It is not the model
that FedAvg gives on them; that one is Retrain's.
"""
NOT_EXACT = """\
Exact is a statement about how a model was made, not evidence that the data is gone. Copies of the old
model, its checkpoints and whatever was made from it are not touched, wherever they are.

An attack that fails shows that this attack fails. No single score here lets anyone conclude that something
was forgotten.
"""


def percent(share: float) -> str:
    """Spell a share."""
    return f"{share:.1%}"


def number(value: float) -> str:
    """Spell a number to three digits, large ones in full."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.3g}".removesuffix(".")


def listed(names: Sequence[str], last: str = "and") -> str:
    """Give names as one would say them."""
    return f" {last} ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def forgotten(view: RunView) -> str:
    """Say what a run was to forget: clients, rows of clients, classes."""
    parts = [_part(part) for part in (view.forget or "").split(",")]
    shown, rest = parts[:NAMED_AT_MOST], len(parts) - NAMED_AT_MOST
    return ", ".join(shown) + (f" and {rest} more" if rest > 0 else "")


def _part(part: str) -> str:
    name, colon, detail = part.partition(":")
    if not colon:
        return name
    return f"class {detail}" if name == "class" else f"rows {detail} of {name}"


def ended(view: RunView) -> str:
    """Say why a run ended, and what its stop rule had to do with it."""
    if view.fired is not None:
        return f"{view.label} stopped after round {view.fired}: {view.rounds[view.fired - 1].stopped}"
    if view.judged:
        return f"{view.label}: the stop rule did not fire within {len(view.rounds)} rounds"
    return f"{view.label}: no stop rule, {len(view.rounds)} rounds"


def headline(views: Sequence[RunView]) -> str:
    """Tell the report's outcome in plain sentences, whoever was faster."""
    unlearned = [view for view in views if view.unlearned]
    tried = sorted((v for v in unlearned if v.role != RETRAIN), key=lambda v: not v.exact) or unlearned
    if not tried:
        return " ".join(_trained(view) for view in views)
    yardsticks = [retrain_of(view, views) for view in tried]
    if len(tried) > TOLD_AT_MOST:
        said = [
            _ranges(tried),
            *(f"{r.label} took {_took(r)}." for r in views if r in yardsticks and r not in tried),
        ]
    else:
        said = [
            _told(view, mark, introduce=yardsticks.index(mark) == i, name=_unlike(tried[:i], view))
            for i, (view, mark) in enumerate(zip(tried, yardsticks, strict=True))
        ]
    if not any(yardsticks):
        said.append("No Retrain run on the same data is in this report to compare with.")
    return " ".join([*judged(views), *said])


def judged(views: Sequence[RunView]) -> list[str]:
    """Say what audits of these very weights came to, in a sentence."""
    words = [f"{v.label} {v.audit.verdict.word}" for v in views if v.audit is not None and v.audited]
    return [f"Audited: {', '.join(words)}."] if words else []


def _trained(view: RunView) -> str:
    clients = len(view.result["clients"])
    return f"The run {view.label} trained {clients} clients in {_took(view)}; nothing was forgotten."


def _unlike(before: Sequence[RunView], view: RunView) -> bool:
    """Whether a run's request was not the one of every run told before it."""
    return not before or any(other.forget != view.forget for other in before)


def _told(view: RunView, retrain: RunView | None, *, introduce: bool, name: bool) -> str:
    """Tell one run's outcome: Retrain's own numbers where it is introduced, the request where it is to be named."""
    said = _retrained(view) if view.exact else _ended_at(view, name)
    if view.judged and view.fired is None:
        said += " (its stop rule never fired, so every scheduled round was run)"
    if retrain is None or retrain is view:
        return said + "."
    known = f"; {retrain.label} took {_took(retrain)}" if introduce else ""
    return f"{said}{known}. {_speed(view, retrain)}"


def _retrained(view: RunView) -> str:
    return f"{view.label} retrained without {forgotten(view)} in {_took(view)}"


def _ended_at(view: RunView, name: bool) -> str:
    """Tell where an approximate run ended, and nothing of having forgotten."""
    asked = f", asked to forget {forgotten(view)}," if name else ""
    accuracy = view.final("test_accuracy")
    where = "" if accuracy is None else f" at {percent(accuracy)} test accuracy"
    return f"{view.label} (approximate){asked} ended{where} after {_rounds(len(view.rounds))} and {number(view.seconds)} s"


def _ranges(views: Sequence[RunView]) -> str:
    """Sum many runs up by their extremes; the table has each."""
    rounds = _range([float(len(view.rounds)) for view in views], lambda n: f"{n:.0f}")
    seconds = _range([view.seconds for view in views], number)
    scores = [score for view in views if (score := view.final("test_accuracy")) is not None]
    reached = f", ending at {_range(scores, percent)} test accuracy" if scores else ""
    late = sum(view.judged and view.fired is None for view in views)
    never = f" The stop rule never fired in {late} of them." if late else ""
    few = sum(not view.exact for view in views)
    roughly = f" {few} of them {'is' if few == 1 else 'are'} approximate." if few else ""
    return f"{len(views)} unlearning runs took {rounds} rounds and {seconds} s each{reached}.{roughly}{never}"


def _range(values: Sequence[float], spell: Callable[[float], str]) -> str:
    low, high = spell(min(values)), spell(max(values))
    return low if low == high else f"{low} to {high}"


def _took(view: RunView) -> str:
    return f"{_rounds(len(view.rounds))} and {number(view.seconds)} s{_reached(view)}"


def _rounds(count: int) -> str:
    return f"{count} round" if count == 1 else f"{count} rounds"


def _reached(view: RunView) -> str:
    accuracy = view.final("test_accuracy")
    return "" if accuracy is None else f", ending at {percent(accuracy)} test accuracy"


def _speed(view: RunView, retrain: RunView) -> str:
    """Say who was faster; where seconds were measured differently, say that instead."""
    if _machinery(view) != _machinery(retrain):
        return "Their seconds were measured on different engines or versions and do not compare."
    if min(view.seconds, retrain.seconds) <= 0:
        return "Their seconds were not measured."
    ratio = view.seconds / retrain.seconds
    if abs(ratio - 1) < ALIKE:
        return f"{view.label} took about as long as {retrain.label}."
    if ratio < 1:
        return f"{view.label} was {number(1 / ratio)} times as fast as {retrain.label}."
    return f"{view.label} was slower: it took {number(ratio)} times as long as {retrain.label}."


def _machinery(view: RunView) -> tuple[object, ...]:
    engine = view.result["engine"]
    return *(engine.get(key) for key in MACHINERY), *sorted(view.result["versions"].items())


def _training(view: RunView) -> str:
    """How the clients trained; that a history was kept changes nothing of it."""
    settings = view.config.get("train")
    if not isinstance(settings, Mapping):
        return str(settings)
    return str({name: value for name, value in settings.items() if name != "keep_history"})


def notes(views: Sequence[RunView]) -> list[str]:
    """Say in plain sentences where the runs differ, so that nobody compares what does not compare."""
    forgot = [forgotten(view) for view in views if view.unlearned]
    seeds = [str(view.config.get("seed", 0)) for view in views]
    data, train = [str(view.config.get("federation")) for view in views], [_training(view) for view in views]
    machinery = [str(_machinery(view)) for view in views]
    checks = [
        (forgot, "These runs were not asked to forget the same: {}."),
        (seeds, "These runs have different seeds: {}."),
        (data, "These runs were not made on the same clients' data."),
        (train, "The clients of these runs did not train with the same settings."),
        (machinery, "These runs used different engines or versions, so their seconds do not compare."),
    ]
    said = [text.format("; ".join(dict.fromkeys(values))) for values, text in checks if len(set(values)) > 1]
    if len(views) > 1 and set(data) == {"None"}:
        said.append(
            "The clients' data came from Python code: whether every run had the same, no folder tells."
        )
    return [*said, *(note for note in [*map(stale, views), approximate(views)] if note)]


def stale(view: RunView) -> str:
    """Say that an audit is of other weights than the run's; nothing where it is not."""
    if view.audit is None or view.audited:
        return ""
    return (
        f"{view.label}: this audit is of other weights than the run ended with, so it says nothing of them; "
        "audit the run again."
    )


def approximate(views: Sequence[RunView]) -> str:
    """Say which runs are approximate and what nobody knows of them; nothing where all are exact."""
    names = [view.label for view in views if not view.exact]
    if not names:
        return ""
    return (
        f"{listed(names)} {'are' if len(names) > 1 else 'is'} approximate: what the forgotten data shaped went in, and nothing bounds what such a model "
        "still knows of it."
    )


def backdoor_note(views: Sequence[RunView]) -> str:
    """Say how to read the backdoor's success."""
    retrain = next((view for view in views if view.role == RETRAIN), None)
    if retrain is None:
        return "No Retrain run here, so the success on a model that never saw the trigger is not known."
    poisoned = (retrain.config.get("federation") or {}).get("backdoor", {}).get("clients")
    if poisoned is None:
        return f"{retrain.label}'s success is the benign floor if every poisoned client was forgotten."
    if set(poisoned) <= set((retrain.forget or "").split(",")):
        return f"Benign floor: {retrain.label}, which never saw the trigger."
    return f"Not every poisoned client was forgotten, so {retrain.label}'s success is above the benign floor."


def scored(views: Sequence[RunView], score: str) -> list[RunView]:
    """Give the runs that have a score, original runs in front."""
    return sorted((v for v in views if v.final(score) is not None), key=lambda v: v.role != ORIGINAL)


def watched(views: Sequence[RunView]) -> list[RunView]:
    """Give the runs that a stop rule watched; if there is none, every unlearning run."""
    return [view for view in views if view.judged] or [view for view in views if view.unlearned]
