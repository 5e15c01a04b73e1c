"""The model card of a run, in Markdown, made from its folder alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from feduhb.report.grids import Grid, escape_markdown
from feduhb.report.runs import NAMES, RunView, printable, read_runs
from feduhb.report.words import (
    explain_starts,
    find_table,
    format_carried,
    get_table,
    join_settings,
    join_some,
    name_table,
    warn_of_other_weights,
)
from feduhb.runs.scores import format_score, name_score

NAMED = 20  # clients in a row of the table; the rest is counted
FRONT = """\
---
library_name: pytorch
tags:
- federated-learning
- feduhb{}
---
"""
EXACT = (
    "Exact, as its method declares: retrained from {} without the forgotten data, so neither that data nor anything made "
    "from it had a part in these weights."
)
APPROXIMATE = (
    "Approximate, not exact: the method uses what the forgotten data helped to make, with no bound on what these weights still "
    "know of it."
)
TRAINED = "Nothing was forgotten: the model was trained on the data of all clients below."
LIMITS_OF_FORGETTING = """\
- "Exact" is about this procedure: trained again, without the forgotten data. It says nothing about models, exports and
  backups that were made before.
- Retire the model that this one replaces, and delete its copies: they still hold what they learned, and can be
  compared with this model.
- An audit that catches nothing is no proof: "forgotten" rests on repeating the run, not on attacks that fail.
"""
LIMITS = """\
- The model has learned from the clients that took part. Unlearning does not protect these.
- More in the documentation of feduhb: "What exact means here", "Audits" and "A request, from start to end".
"""
STANDARDISED = (
    "Standardised: minus the mean of the client's own training rows, divided by their standard deviation. "
)
LOAD = """\
`feduhb export RUN --out model.safetensors` writes the weights under the model's own names:

```python
from safetensors.torch import load_file

model.load_state_dict(load_file("model.safetensors"))
```
"""


def make_card(folder: Path | str) -> str:
    """Return the model card of a finished run as Markdown with the YAML front matter of Hugging Face."""
    (view,) = read_runs([folder])
    sections = {
        "": _describe_run(view),
        **({} if (table := find_table(view)) is None else {"Inputs": _list_inputs(table)}),
        "Scores": _list_scores(view),
        "Who was asked": _list_clients(view),
        "Training": _list_training(view),
        "Audit": _describe_audit(view),
        "Limits": LIMITS_OF_FORGETTING + LIMITS if view.unlearned else LIMITS,
        "Load it": LOAD,
    }
    tag = "\n- machine-unlearning" if view.unlearned else ""
    title = f"{_name_method(view)} without {_format_request(view)}" if view.unlearned else "A federated model"
    parts = [f"# {escape_markdown(title)}\n"]
    parts += [f"## {heading}\n\n{text}" if heading else text for heading, text in sections.items()]
    return FRONT.format(tag) + "\n" + "\n".join(parts)


def _name_method(view: RunView) -> str:
    return NAMES.get(view.result["method"], printable(view.result["method"]))


def _format_request(view: RunView) -> str:
    return printable(view.forget or "").replace(",", ", ")


def _describe_run(view: RunView) -> str:
    """Return what the model is, what exact means, and a table of its origin."""
    result, config = view.result, view.config
    start = "the given start" if get_table(view, "start").get("given") else "a fresh model"
    meaning = TRAINED if not view.unlearned else EXACT.format(start) if view.exact else APPROXIMATE
    rows = [
        ("method", _name_method(view)),
        ("rounds", f"{result['rounds']} of {result['scheduled_rounds']} scheduled"),
        ("ended because", printable(result["stopped"])),
        *_list_kept(view),
        *_list_restart(view),
        *_list_origin(view),
        ("data", _describe_data(view)),
        ("seed", str(config.get("seed", 0))),
        *_list_start(view),
        ("parameters", f"{result['parameters']:,}"),
        ("SHA-256 of the weights", printable(result["weights_sha256"])),
        ("finished", printable(result["finished"])),
    ]
    return f"{meaning}\n\n{_make_table(('', ''), rows)}"


def _list_kept(view: RunView) -> Iterator[tuple[str, str]]:
    """Yield which model the run kept, if it kept the best one."""
    if (kept := view.result.get("kept_round")) is not None:
        yield "model kept", f"the one after round {kept}, with the best score on the clients' held-out data"


def _list_restart(view: RunView) -> Iterator[tuple[str, str]]:
    """Yield from where a rollback continued the training."""
    if done := view.result.get("restart_round"):
        digest = printable(str(view.result.get("restart_sha256")))
        yield (
            "continued from",
            f"the model that training kept after {done} rounds, before it asked a leaver (SHA-256 {digest})",
        )


def _list_origin(view: RunView) -> Iterator[tuple[str, str]]:
    """Yield the request and the run that it was served on, by the digest of its config.toml."""
    if view.unlearned:
        yield "forgotten", _format_request(view)
    elif left_out := get_table(view, "flower").get("forget"):
        yield "left out because of earlier requests", printable(str(left_out)).replace(",", ", ")
    came_from = view.result.get("came_from")
    if came_from:
        more = f", which came from {len(came_from) - 1} more" if len(came_from) > 1 else ""
        yield "came from the run", f"config.toml with the SHA-256 {printable(came_from[0])}{more}"
    elif view.unlearned:
        yield "came from the run", "not recorded"


def _describe_data(view: RunView) -> str:
    about = get_table(view, "federation")
    if (table := find_table(view)) is not None:
        return name_table(table)
    if "data" not in about:
        return "own data, which the run folder does not name"
    more = {key: value for key, value in about.items() if key != "data" and not isinstance(value, Mapping)}
    return printable(", ".join(filter(None, (str(about["data"]), join_settings(more)))))


def _list_inputs(table: Mapping[str, Any]) -> str:
    """Return how the columns of a table become the inputs of the model, in their order."""
    scaling, fills = table.get("scaling", {}), table.get("fills", {})

    def describe(column: str, kind: str) -> tuple[str, str, str]:
        own = f"{kind}, standardised" if table.get("standardize") else kind
        scaled = (
            "{}, minus {:g}, divided by {:g}".format(kind, *scaling[column]) if column in scaling else own
        )
        return column, scaled, str(fills.get(column, ""))

    rows = [describe(column, "number") for column in table.get("numbers", ())]
    rows += [describe(column, f"days since {day}") for column, day in table.get("dates", {}).items()]
    rows += [
        (column, f"0 or 1 for each of {', '.join(map(str, values))}", str(fills.get(column, "")))
        for column, values in table.get("categories", {}).items()
    ]
    target = table["target"] if isinstance(table["target"], str) else ", ".join(table["target"])
    classes = (
        ", ".join(map(str, table.get("classes", (0, 1))))
        if table.get("loss") in {None, "cross_entropy"}
        else ""
    )
    scaled = STANDARDISED if any("standardised" in row[1] for row in rows) else ""
    output = f"{scaled}The outputs are for {target}{f', one for each of {classes}' if classes else ''}."
    listed = [tuple(map(printable, row)) for row in rows]
    return f"{_make_table(('column', 'input', 'if missing'), listed)}\n{escape_markdown(printable(output))}\n"


def _list_start(view: RunView) -> Iterator[tuple[str, str]]:
    declared = explain_starts([view])
    yield "start", declared[0] if declared else "a fresh model, drawn from the seed"
    if carried := format_carried(view):
        digest = printable(str(get_table(view, "start").get("carried_sha256")))
        yield "carried as given, never trained", f"{carried} (SHA-256 {digest})"


def _list_scores(view: RunView) -> str:
    scores = view.result["scores"]
    if not scores:
        return "The model was not scored.\n"
    rows = [(printable(name_score(name)), format_score(name, value)) for name, value in scores.items()]
    kept = view.result.get("kept_round")
    when = "After the last round" if kept is None else f"After round {kept}, whose model was kept"
    return f"{when}:\n\n{_make_table(('score', 'value'), rows)}"


def _list_clients(view: RunView) -> str:
    """Return who was asked in how many rounds; clients with the same numbers share a row."""
    everyone = view.result["clients"]
    asked, answered = (
        Counter(client for record in view.rounds for client in names(record))
        for names in (lambda record: record.asked, lambda record: record.answered)
    )
    alike: dict[tuple[int, int], list[str]] = {}
    for client in sorted({*everyone, *asked}):
        alike.setdefault((asked[client], answered[client]), []).append(client)
    rows = [
        (join_some([*map(printable, names)], NAMED), str(a), str(b))
        for (a, b), names in sorted(alike.items(), reverse=True)
    ]
    regular = [record for record in view.rounds if not record.leavers]
    sizes = sorted({len(record.asked) for record in regular if record.asked}) or [0]
    is_sampled = sizes[0] < len(everyone)
    some = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    said = f"{len(everyone)} clients took part. " + (
        f"A round asked {some} of them."
        if is_sampled
        else "They were not sampled: a round asked all of them."
    )
    idle = sum(not record.asked for record in view.rounds)
    rested = f" {idle} rounds asked nobody." if idle else ""
    if count := len(view.rounds) - len(regular):
        leavers = sorted({printable(client) for record in view.rounds for client in record.leavers})
        rested += f" In {count} more, leavers worked on the data that they asked to forget: {join_some(leavers, NAMED)}."
    return f"{said}{rested}\n\n{_make_table(('clients', 'rounds asked', 'rounds answered'), rows)}"


def _list_training(view: RunView) -> str:
    train, result = get_table(view, "train"), view.result
    stop = get_table(view, "unlearn" if view.unlearned else "train").get("stop")
    plain = {key: value for key, value in train.items() if not isinstance(value, Mapping)}
    rows = [
        ("training", join_settings(plain)),
        ("method", join_settings(result["settings"])),
        ("stop rule", join_settings(stop) if isinstance(stop, Mapping) else "none is recorded"),
        *((name, str(view.config[name])) for name in ("loss", "augment") if name in view.config),
        ("engine", join_settings({key: value for key, value in result["engine"].items() if key != "why"})),
        ("versions", join_settings(result["versions"])),
    ]
    return _make_table(("", ""), [(name, printable(value)) for name, value in rows])


def _describe_audit(view: RunView) -> str:
    """Return the verdict with its reasons and date, or why there is none."""
    audit = view.audit
    if not view.unlearned:
        return "The run has forgotten nothing, so there is nothing to audit.\n"
    if audit is None:
        return "No audit of this model is recorded: whether it forgot was not checked. `feduhb audit RUN` does that.\n"
    if not view.audited:
        return f"{escape_markdown(warn_of_other_weights(view))}\n"
    reasons = "".join(f"- {escape_markdown(printable(reason))}\n" for reason in audit.verdict.reasons)
    return (
        f"Verdict of {escape_markdown(printable(audit.finished[:10]))}: **{audit.verdict.word}**\n\n{reasons}"
    )


def _make_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    text = frozenset({0}) if headers[0] else frozenset({0, 1})
    return Grid("", headers, rows, text).to_markdown()
