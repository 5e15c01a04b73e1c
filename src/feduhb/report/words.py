"""The sentences and formats of a report, made from its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import PurePath
from typing import Any

from feduhb.report.runs import ORIGINAL, RETRAIN, RunView, group_seeds, printable, retrain_of
from feduhb.runs.folder import MACHINERY
from feduhb.runs.scores import LOSS, format_change, format_number, format_score, name_score

NOTHING = "–"  # noqa: RUF001
NAMED_AT_MOST = 6  # of what was forgotten; the rest is counted
TOLD_AT_MOST = 3  # runs; a headline gives the ranges of more
DRAWN_AT_MOST = 12  # runs whose curves can be told apart; of more, one seed of each method is drawn
SHORT = 40  # characters of a name in a headline
ALIKE = 0.05  # seconds that differ by less are called about the same


def format_percent(share: float) -> str:
    """Format a share as a percentage."""
    return f"{share:.1%}"


def format_share(share: float | None) -> str:
    """Format a share as a percentage, or a dash if it is not known."""
    return NOTHING if share is None else format_percent(share)


def format_points(share: float) -> str:
    """Format a difference of shares in percentage points, with its sign."""
    return format_change("accuracy", share)


def list_scores(views: Sequence[RunView]) -> list[str]:
    """Return the scores that these runs have: the one to compare them by first, the test loss last.

    That is the first score of most of the runs.
    """
    given = [score for view in views for score in view.directions]
    counts = {score: len(with_score(views, score)) for score in dict.fromkeys(given)}
    most = max(counts, key=counts.__getitem__, default="")
    rest = [LOSS] if with_score(views, LOSS) else []
    return [*dict.fromkeys(score for score in (most, *counts) if counts.get(score)), *rest]


def list_charted(views: Sequence[RunView]) -> list[str]:
    """Return the scores that may have a chart: those of the last rounds first, the test loss last."""
    known = [score for score in list_scores(views) if score != LOSS]
    return [*dict.fromkeys((*known, *(score for view in views for score in view.directions), LOSS))]


def choose_drawn(views: Sequence[RunView]) -> list[RunView]:
    """Return the runs that charts of rounds show: all of a few, else the first seed of each method under its name."""
    if len(views) <= DRAWN_AT_MOST:
        return [*views]
    return [replace(runs[0], label=name) for name, runs in group_seeds(views)]


def choose_score(views: Sequence[RunView]) -> str:
    """Return the score to compare these runs by: the test loss if none of them has another."""
    return next(iter(list_scores(views)), "test_accuracy")


def is_low_best(views: Sequence[RunView], score: str) -> bool:
    """Return whether less of a score is better, as the runs say that were given it."""
    return score == LOSS or any(view.directions.get(score) == "low" for view in views)


def name_part(score: str) -> str:
    """Return the name of a score in the names of charts on a page, which a score of the user's own cannot choose."""
    return {"test_accuracy": "accuracy", LOSS: "loss"}.get(score, "score")


def title(score: str) -> str:
    """Return the name of a score with a capital letter."""
    name = printable(name_score(score))
    return name[:1].upper() + name[1:]


def format_final(view: RunView, score: str) -> str:
    """Format a score of the last round, or a dash if there is none."""
    value = view.final(score)
    return NOTHING if value is None else format_score(score, value)


def join_names(names: Sequence[str], last: str = "and") -> str:
    """Join names with commas and a last "and"."""
    return f" {last} ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def join_some(names: Sequence[str], most: int = NAMED_AT_MOST) -> str:
    """Join the first names with commas, and count the others."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def join_settings(values: Mapping[str, object]) -> str:
    """Join names and values with commas."""
    return ", ".join(f"{key} {value}" for key, value in values.items())


def format_request(view: RunView) -> str:
    """Name the clients, rows or classes that a run was asked to forget."""
    return join_some([_format_part(part) for part in printable(view.forget or "").split(",")])


def _shorten_request(view: RunView) -> str:
    """Name what a run was asked to forget if that is short, else count it."""
    parts, named = (view.forget or "").split(","), format_request(view)
    if len(named) <= SHORT or len(parts) == 1:
        return shorten(named)
    return (
        f"{len(parts)} clients" if all(":" not in part for part in parts) else f"{len(parts)} groups of rows"
    )


def shorten(name: str) -> str:
    """Cut a long name."""
    return name if len(name) <= SHORT else f"{name[: SHORT - 1]}…"


def _format_part(part: str) -> str:
    name, colon, detail = part.partition(":")
    if not colon:
        return name
    return f"class {detail}" if name == "class" else f"rows {detail} of {name}"


def describe_end(view: RunView) -> str:
    """Describe why a run ended, and which model it kept if that is not the last one."""
    kept = view.result.get("kept_round")
    which = "" if kept is None else f"; kept: the model after round {kept}, with the best held-out score"
    if view.fired is not None:
        reason = view.rounds[view.fired - 1].stopped
        return f"{view.label} stopped after round {view.fired}: {reason}{which}"
    if view.judged:
        return f"{view.label}: the stop rule did not fire within {len(view.rounds)} rounds{which}"
    return f"{view.label}: no stop rule, {len(view.rounds)} rounds{which}"


def choose_main(views: Sequence[RunView]) -> RunView | None:
    """Return the run that the report is about: an unlearning run, preferably exact and not Retrain."""
    unlearned = [view for view in views if view.unlearned]
    return min(unlearned, key=lambda view: (view.role == RETRAIN, not view.exact), default=None)


def headline(views: Sequence[RunView]) -> str:
    """Return the outcome in one short sentence, however many runs there are and however long their names."""
    main = choose_main(views)
    if main is None:
        first = views[0]
        if len(views) > 1:
            return f"{len(views)} training runs took {_format_range(views)}; nothing was forgotten."
        trained = f"{len(first.result['clients'])} clients in {_count_rounds(first)}"
        return f"{shorten(first.label)} trained {trained}; nothing was forgotten."
    tried = [view for view in views if view.unlearned and view.role != RETRAIN]
    if len(tried) > TOLD_AT_MOST:
        return f"{len(tried)} unlearning runs took {_format_range(tried)}."
    asked = "retrained without" if main.exact else "(approximate) was asked to forget"
    said = f"{shorten(main.label)} {asked} {_shorten_request(main)} in {_count_rounds(main)}"
    retrain = retrain_of(main, views)
    if retrain is None:
        return f"{said}; there is no Retrain run on the same data to compare with."
    return f"{said}." if retrain is main else f"{said}, {compare_seconds(main, retrain)}."


def _format_range(views: Sequence[RunView]) -> str:
    counts, score = [len(view.rounds) for view in views], choose_score(views)
    ends = [end for view in views if (end := view.final(score)) is not None]
    low, high = (format_score(score, end) for end in (min(ends), max(ends))) if ends else ("", "")
    ended = f" and ended at {low} to {high} {printable(name_score(score))}" if ends else ""
    return f"{min(counts)} to {max(counts)} rounds{ended}"


def list_settings(views: Sequence[RunView]) -> list[str]:
    """Return the date, the data, the clients, the request and the main settings; what differs between runs is listed."""
    main = choose_main(views) or views[0]
    trained = [view for view in views if not view.unlearned]
    asked = dict.fromkeys(format_request(view) for view in views if view.unlearned)
    epochs = dict.fromkeys(str(get_table(view, "train").get("epochs", NOTHING)) for view in views)
    counts = dict.fromkeys(str(len(view.result["clients"])) for view in trained or [main])
    seeds = dict.fromkeys(str(view.config.get("seed", 0)) for view in views)
    return [
        _format_date(max(view.result["finished"] for view in views)),
        " / ".join(dict.fromkeys(map(_describe_data, views))),
        f"{' / '.join(counts)} {'' if trained else 'remaining '}clients",
        *([f"forget {'; '.join(asked)}"] if asked else []),
        f"rounds {main.result['scheduled_rounds']}, epochs {' / '.join(epochs)}, seed {' / '.join(seeds)}",
        " / ".join(dict.fromkeys(map(_describe_model, views))),
        *dict.fromkeys(start for view in views if (start := format_start(view))),
    ]


def _format_date(text: str) -> str:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return printable(text)
    return f"{found.day} {found:%B %Y}"


def get_table(view: RunView, table: str) -> Mapping[str, Any]:
    """Return a table of a run's config.toml; empty if there is none."""
    found = view.config.get(table)
    return found if isinstance(found, Mapping) else {}


def find_table(view: RunView) -> Mapping[str, Any] | None:
    """Return the [federation.table] of a run; None if its data is not a table."""
    found = get_table(view, "federation").get("table")
    return found if isinstance(found, Mapping) else None


def name_table(table: Mapping[str, Any]) -> str:
    """Return the name of a table's file, and which column names the clients."""
    return printable(f"the table {PurePath(table['path']).name}, with clients by {table['client']}")


def _describe_data(view: RunView) -> str:
    about = get_table(view, "federation")
    if (table := find_table(view)) is not None:
        return name_table(table)
    if "data" not in about:
        return "data from Python code"
    return printable(
        f"{about['data']} ({about['partition']})" if "partition" in about else str(about["data"])
    )


def _describe_model(view: RunView) -> str:
    name = printable(str(get_table(view, "federation").get("model", "")))
    return f"{name} model of {view.result['parameters']:,} parameters".strip()


def format_start(view: RunView) -> str:
    """Describe a start that was given, with its digest; an empty string if the first weights were drawn."""
    start = get_table(view, "start")
    return f"given start, SHA-256 {printable(str(start.get('sha256')))[:12]}…" if start.get("given") else ""


def format_carried(view: RunView) -> str:
    """Name the frozen parameters and constant buffers, or count them if there are many; an empty string if there are none."""
    found = get_table(view, "start").get("carried")
    return join_some([printable(str(name)) for name in found] if isinstance(found, list) else [])


def explain_starts(views: Sequence[RunView]) -> list[str]:
    """Return what was declared about starts that were given, each once."""
    return [*dict.fromkeys(printable(said) for view in views if (said := view.result.get("start")))]


def _count_rounds(view: RunView) -> str:
    count = len(view.rounds)
    return f"{count} round" if count == 1 else f"{count} rounds"


def compare_seconds(view: RunView, retrain: RunView) -> str:
    """Describe which run was faster, or why their seconds cannot be compared."""
    if _describe_machine(view) != _describe_machine(retrain):
        return "in seconds that do not compare: another engine or version"
    if min(view.seconds, retrain.seconds) <= 0:
        return "in seconds that were not measured"
    ratio = view.seconds / retrain.seconds
    if abs(ratio - 1) < ALIKE:
        return f"about as long as {shorten(retrain.label)}"
    if ratio < 1:
        return f"{format_number(1 / ratio)} times as fast as {shorten(retrain.label)}"
    return f"slower: {format_number(ratio)} times as long as {shorten(retrain.label)}"


def _describe_machine(view: RunView) -> tuple[object, ...]:
    engine = view.result["engine"]
    return *(engine.get(key) for key in MACHINERY), *sorted(view.result["versions"].items())


def _describe_training(view: RunView) -> str:
    """Return the clients' training settings; what is kept for later requests does not change the training."""
    settings = view.config.get("train")
    if not isinstance(settings, Mapping):
        return str(settings)
    return str(
        {name: value for name, value in settings.items() if name not in {"keep_history", "keep_models"}}
    )


def list_notes(views: Sequence[RunView]) -> list[str]:
    """Return the differences between runs that forbid a comparison, and what limits the verdicts."""
    requests = [format_request(view) for view in views if view.unlearned]
    seeds = [str(view.config.get("seed", 0)) for view in views]
    data = [str(view.data) for view in views]
    checks = [
        (requests, "Different requests: {}."),
        (seeds, "Different seeds: {}."),
        (data, "Different clients' data."),
        ([_describe_training(view) for view in views], "Different training settings of the clients."),
        (
            [str(_describe_machine(view)) for view in views],
            "Different engines or versions: seconds do not compare.",
        ),
    ]
    found = [text.format("; ".join(dict.fromkeys(values))) for values, text in checks if len(set(values)) > 1]
    if len(views) > 1 and set(data) == {"None"}:
        found.append("The clients' data came from Python code: no folder shows whether it was the same.")
    if len(choose_drawn(views)) < len(views):
        found.append(
            "Charts of rounds and of the backdoor show the first seed; tables and client work show all."
        )
    found += explain_starts(views)
    return [*found, *(note for note in [*map(warn_of_other_weights, views), name_approximate(views)] if note)]


def warn_of_other_weights(view: RunView) -> str:
    """Return a warning if other weights than the run's were audited, else an empty string."""
    if view.audit is None or view.audited:
        return ""
    return f"{view.label}: other weights than the run's were audited, so this verdict is not about them; audit the run again."


def name_approximate(views: Sequence[RunView]) -> str:
    """Name the approximate runs and what is unknown about them; an empty string if all are exact."""
    names = [name for name, _ in group_seeds([view for view in views if not view.exact])]
    if not names:
        return ""
    verb = "are" if len(names) > 1 else "is"
    return (
        f"{join_names(names)} {verb} approximate: made from what the forgotten data shaped, "
        "with no bound on what such a model still knows of it."
    )


def describe_floor(views: Sequence[RunView]) -> str:
    """Describe the backdoor success that a model without the trigger has, if it is known."""
    retrain = next((view for view in views if view.role == RETRAIN), None)
    if retrain is None:
        return "No Retrain run here: the success without the trigger is not known."
    poisoned = (retrain.config.get("federation") or {}).get("backdoor", {}).get("clients")
    if poisoned is None:
        return f"{retrain.label} is the floor if every poisoned client was forgotten."
    if set(poisoned) <= set((retrain.forget or "").split(",")):
        return f"Floor: {retrain.label}, which never saw the trigger."
    return f"Not every poisoned client was forgotten: {retrain.label} is above the floor."


def with_score(views: Sequence[RunView], score: str) -> list[RunView]:
    """Return the runs that have a score, original runs first."""
    return sorted((v for v in views if v.final(score) is not None), key=lambda v: v.role != ORIGINAL)


def watched(views: Sequence[RunView]) -> list[RunView]:
    """Return the runs under a stop rule; if there are none, every unlearning run."""
    return [view for view in views if view.judged] or [view for view in views if view.unlearned]
