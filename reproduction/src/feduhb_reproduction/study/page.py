"""The page of a study, from its folder: verdicts, three figures, tables, and what was not run yet. It trains nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from feduhb.report.grids import Grid
from feduhb.report.words import NOTHING, join_names
from feduhb.runs import write_atomically
from feduhb_reproduction.measures import ACCURACY
from feduhb_reproduction.study.choose import (
    Choice,
    describe_finalists,
    describe_limit,
    guess_contenders,
    score_candidate,
    summarise_stops,
)
from feduhb_reproduction.study.cost import add_times
from feduhb_reproduction.study.criteria import Results, judge_study, list_ahead, read_results
from feduhb_reproduction.study.design import BESIDE, NAMES, PAPER, Study, find_study, read_study
from feduhb_reproduction.study.figures import draw_study, label_runs
from feduhb_reproduction.study.make import estimate_study
from feduhb_reproduction.study.results import (
    DATA,
    Federations,
    count_client_epochs,
    count_rounds,
    list_labels,
    score_final,
    subtract_at_equal_work,
)
from feduhb_reproduction.words import format_counts, format_numbers, format_shares

STUDIES = ("study", "study-quick")
FIGURES = {
    "rounds": "Rounds to Retrain's accuracy, by federation and method",
    "stopping": "Points that stop rules lose against the rounds that they save",
    "work": "Test accuracy against the work of clients",
}


INTRO = """\
Which exact method needs the fewest rounds, and which stop rule can be trusted? All candidates are [exact](../exact.md): they start from a fresh model and see
only the updates of the remaining clients."""
TODAY = """\
**To use today:** [`method="fast"`](../methods/accelerators.md) is {} until this study has run. The [rehearsal](#the-quick-tier-a-rehearsal) chose it, which says
little about other data."""
HOW = """\
## How it is judged

- Settings are chosen on some seeds and reported on others. Criteria were written before anything was run, and a verdict is computed from the stored cells.
- Two rules were added later, to save time: after 119 tuning runs of seed 1 on MNIST, and before any run on CIFAR-10, on seed 2 or on a reported seed.
    - {limit}
    - {finalists}
- The stop rules were extended when 52 runs of seeds 3 to 7 had been seen. Until then every rule returned the last model, whose accuracy swings from round to round
  where clients are skewed. Now one family keeps the best model and may smooth over 8 or 10 rounds, and on the tuning seeds a rule must end five rounds earlier. So that nobody
  chooses on what is reported, the rule is judged on seeds 8 to 12, of which no run had been made.
- “Kept” means that the test accuracy is never below the final one of the same seed's Retrain again."""
RUN = """\
## Run it

```sh
feduhb study --dry-run                  # what is missing, and how long it takes
feduhb study --data FOLDER --engine stacked:tf32 --out results/study --minutes 8   # a piece; again for the next
python -m feduhb_reproduction.pages     # this page
```

- A cell is one federation with one seed. Its file in `results/study/DATA/cells/` is written after every run. An interrupted command continues where it ended. After
  `--minutes` no run begins, and the last one is finished, which should take less than half a minute on an H200.
- `--only mnist/iid` and `--seeds 1,2` choose cells, for several machines. Copy their files into one folder.
- Runs are made in phases, in the order of the table: the first chooses, the second judges the criteria on rounds and stop rules, the third those on client work.
  What depends on a choice waits for it. `--dry-run` estimates each phase.
- `--workers 12` makes twelve cells at once; the weights of a run do not depend on it. On an H200 with NVIDIA's multi-process service (`nvidia-cuda-mps-control -d`) and 16
  cores, twelve workers made this study about twice as fast as one after the other."""
QUICK = """\
## The quick tier: a rehearsal

This is the same study on 4,000 training images of `mnist-5k` with a perceptron and other local settings, run on two cores to try every step from cells to this page.
**It says nothing about MNIST or CIFAR-10**, and no verdict above rests on it."""


def make_page(results: Path, pictures: dict[str, dict[str, str]]) -> Iterator[str]:
    """Yield the parts of the page in docs/, from a folder of results with study and study-quick.

    Args:
        pictures: by the name of a study, the path of each figure that there is.
    """
    study, quick = (read_study(find_study(name)) for name in STUDIES)
    found = read_results(study, results / "study")
    yield "# Faster exact methods, and stop rules"
    yield INTRO
    rehearsed = read_results(quick, results / "study-quick")
    if found.choice is None and rehearsed.choice is not None:
        yield TODAY.format(_label(rehearsed, rehearsed.choice.fast.run))
    yield from render_study(found, pictures.get("study", {}))
    contenders = guess_contenders(study, results / "study")
    slow = "; ".join(one.label for one in study.list_candidates() if one.name not in contenders)
    limit = f"{describe_limit(study)} So far this leaves out: {slow or 'none'}."
    yield HOW.format(limit=limit, finalists=describe_finalists(study))
    yield RUN
    yield from render_cost(study, results / "study")
    if rehearsed.reported:
        yield QUICK
        yield from render_study(rehearsed, pictures.get("study-quick", {}), level=3)


def describe_fast(results: Path) -> str:
    """Return in which rounds the recommended method keeps Retrain's accuracy, from a folder of results; "" before they were run."""
    study = read_study(find_study(STUDIES[0]))
    found = read_results(study, results / STUDIES[0])
    if found.fast is None:
        return ""
    rounds = {run: _list_means(found, run) for run in (found.fast, PAPER)}
    if not all(rounds.values()):
        return ""
    mine, papers = (f"{min(means):.0f} to {max(means):.0f}" for means in rounds.values())
    data = join_names([DATA[name] for name in study.data])
    most = max(len(one.every(found.fast)) for one in found.reported.values())
    return (
        f"On {len(found.reported)} federations of {data} it keeps the accuracy that Retrain has after {study.rounds} rounds from round {mine} on, and FedUHB with "
        f"the paper's settings from round {papers} on (from the best to the worst federation, each the mean of up to {most} seeds)."
    )


def _list_means(results: Results, run: str) -> list[float]:
    """Return the rounds from which a run keeps Retrain's accuracy, a mean for each federation."""
    found = (count_rounds(one, run).mean for one in results.reported.values())
    return [mean for mean in found if mean is not None]


def render_cost(study: Study, out: Path) -> Iterator[str]:
    """Yield the estimated minutes of a study on a GPU, by phase."""
    phases = estimate_study(study, out)
    whole, left = (add_times(getattr(one, name) for one in phases) for name in ("whole", "minutes"))
    if whole is None or left is None:
        yield "The minutes are not estimated: rounds of this data were not measured on a GPU."
        return
    yield (
        f"About {left:.0f} minutes on one NVIDIA H200 are left of {whole:.0f}, estimated from [measured rounds](../speed.md) in tf32, one run after the other, "
        "without the compilation of kernels. What is not chosen yet counts as what leads so far."
    )
    rows = [[one.name, str(one.missing), f"{one.minutes:.0f}", f"{one.whole:.0f}"] for one in phases]
    yield Grid("", ["phase", "runs left", "minutes left", "minutes in all"], rows).to_markdown().rstrip()


def write_study(study: Study, out: Path) -> list[Path]:
    """Write the report on a study's cells beside them: README.md, summary.json and the figures; return its files."""
    from feduhb.report.drawing import to_png

    results = read_results(study, out)
    figures = {f"{name}.png": to_png(figure) for name, figure in draw_study(results).items()}
    pictures = {name: f"{name}.png" for name in FIGURES if f"{name}.png" in figures}
    page = "\n\n".join(
        [f"# Faster exact methods, and stop rules: {study.title}", *render_study(results, pictures)]
    )
    numbers = json.dumps(summarise(results), allow_nan=False, ensure_ascii=False, indent=1)
    made = {"README.md": f"{page}\n".encode(), "summary.json": f"{numbers}\n".encode(), **figures}
    for name, data in made.items():
        write_atomically(out / name, data, private=False)
    return [out / name for name in made]


def render_study(results: Results, pictures: dict[str, str], level: int = 2) -> Iterator[str]:
    """Yield the parts of a page: state, verdicts, figures, tables.

    Args:
        pictures: the path of each figure that there is, by name.
        level: of the headings.
    """
    mark = "#" * level
    yield describe_state(results)
    if results.choice is None:
        yield from _render_tuning(results, mark)
        return
    yield _tabulate_verdicts(results).to_markdown().rstrip()
    for name, path in pictures.items():
        yield f"![{FIGURES[name]}]({path})"
    yield f"{mark} What was chosen"
    choice = results.choice
    seeds = join_names([str(seed) for seed in results.study.tune])
    words = [
        f"On seeds {seeds} alone. The fastest method there is the recommended one: {choice.fast.why}.",
        choice.limited_by,
        choice.finalists_by,
        f"A method is chosen by {choice.methods_by}",
        f"A rule is chosen by this: {choice.rules_by}",
    ]
    yield "\n".join(f"- {one}" for one in words if one)
    yield _tabulate_choice(results, choice).to_markdown().rstrip()
    for table in (tabulate_rounds(results), tabulate_work(results), tabulate_rules(results)):
        if table.rows:
            yield f"{mark} {table.title}"
            yield table.to_markdown().rstrip()
            yield table.note


def _render_tuning(results: Results, mark: str) -> Iterator[str]:
    """Yield what is known before anything is chosen: rounds on the tuning seeds, and what will be judged."""
    if results.tuned:
        summary = summarise_tuning(results)
        yield f"{mark} {summary.title}"
        yield summary.note
        yield summary.to_markdown().rstrip()
    yield f"{mark} What will be judged"
    yield "\n".join(f"{n}. {one.words}." for n, one in enumerate(judge_study(results), 1))
    if results.tuned:
        every = tabulate_tuning(results)
        yield f"{mark} {every.title}"
        yield every.to_markdown().rstrip()
        yield every.note


def describe_state(results: Results) -> str:
    """Return what is there, and what made it."""
    study, cells = results.study, [cell for one in results.reported.values() for cell in one.cells]
    wanted = study.count_federations() * len(study.report)
    if not cells:
        begun = "The tuning has begun" if results.tuned else "Not run yet"
        if results.choice is not None:
            begun = (
                "The tuning is done"
                if results.choice.rule
                else "The methods are chosen, and no stop rule yet"
            )
        return f"**{begun}.** None of the {wanted} cells of the reported seeds has been made, so nothing is judged."
    made = [made for cell in cells for made in cell.origins]
    devices = join_names(
        sorted({f"{one['device']} ({one['engine']['name']}, {one['engine']['precision']})" for one in made})
    )
    commits = join_names(sorted({str(one["commit"]) for one in made}))
    done = "All" if len(cells) == wanted else f"**Incomplete:** {len(cells)} of"
    names = {**label_runs(results), **{rival: NAMES[rival] for rival in BESIDE}}
    lacking = [name for run, name in names.items() if any(run not in cell.runs for cell in cells)]
    missing = f" **Runs are missing** in some or all of them: of {'; '.join(lacking)}." if lacking else ""
    return (
        f"{done} {wanted} cells of reported seeds ({', '.join(map(str, study.report))}) are there, made on {devices} at commit {commits}. "
        f"{study.clients} clients, {len(study.forget.split(','))} forgotten; {study.epochs} local epochs, batch {study.batch_size}, learning rate {study.lr:g}, "
        f"{study.held_out:.0%} of each client's data held out.{missing}"
    )


def _tabulate_verdicts(results: Results) -> Grid:
    rows = [[one.words, one.verdict, one.measured] for one in judge_study(results)]
    return Grid("", ["criterion", "verdict", "measured"], rows, frozenset({0, 1, 2}))


def _tabulate_choice(results: Results, choice: Choice) -> Grid:
    every, first = (", ".join(map(str, seeds)) for seeds in (results.study.tune, results.study.tune[:1]))
    data = results.study.data[0]

    def say_seeds(name: str) -> str:
        if choice.contenders and name not in choice.contenders:
            return f"{first}, {DATA.get(data, data)} alone"
        return first if choice.finalists and name not in choice.finalists else every

    rows = [
        [_label(results, name), f"{score.worst:.1f}", f"{score.mean:.1f}", say_seeds(name), "yes" if name == one.chosen else ""]
        for one in choice.methods.values()
        for name, score in one.tried.items()
    ]  # fmt: skip
    headers = ["candidate", "rounds in its worst federation", "rounds on average", "seeds", "chosen"]
    return Grid("", headers, rows, frozenset({0, 3, 4}))


def summarise_tuning(results: Results) -> Grid:
    """Return the fewest and the most rounds of every candidate, as far as the tuning seeds were run."""
    rows = []
    for candidate in results.study.list_candidates():
        score = score_candidate(results.tuned, candidate.name)
        if score.rounds:
            fewest = min(score.rounds.values())
            rows.append([candidate.label, str(len(score.rounds)), f"{fewest:g}", f"{score.worst:g}"])
    data = {cell.place.data for one in results.tuned.values() for cell in one.cells}
    note = (
        f"Rounds to keep Retrain's accuracy after {results.study.rounds} rounds, on the tuning seeds and {join_names([DATA.get(one, one) for one in sorted(data)])} alone. "
        f"A preview: nothing is reported on these seeds."
    )
    headers = ["candidate", "federations", "fewest rounds", "most rounds"]
    return Grid("So far, on the tuning seeds", headers, rows, frozenset({0}), note)


def tabulate_tuning(results: Results) -> Grid:
    """Return the rounds of every candidate in each federation, as far as the tuning seeds were run."""
    rows = []
    for candidate in results.study.list_candidates():
        found = [count_rounds(one, candidate.name) for one in results.tuned.values()]
        if any(one.values for one in found):
            rows.append([candidate.label, *map(format_counts, found)])
    runs = sum(len(cell.runs) for one in results.tuned.values() for cell in one.cells)
    note = f"{runs} tuning runs are there. Settings will be chosen when all are."
    return Grid("In each federation", ["candidate", *results.tuned], rows, frozenset({0}), note)


def tabulate_rounds(results: Results) -> Grid:
    """Return the rounds, client epochs and final scores of every chosen method."""
    rows: list[list[str]] = []
    groups: dict[int, str] = {}
    for label, federation in results.reported.items():
        groups[len(rows)] = label
        for run, name in label_runs(results).items():
            if not federation.has(run):
                continue
            first, kept = (count_rounds(federation, run, kept=each) for each in (False, True))
            accuracy, loss = (score_final(federation, run, series) for series in (ACCURACY, "test_loss"))
            rows.append([
                name, format_counts(first), format_counts(kept), format_counts(count_client_epochs(federation, run)),
                format_shares(accuracy), format_numbers(loss), f"{accuracy.n}",
            ])  # fmt: skip
    headers = ["method", "first round", "kept from", "client epochs", "accuracy", "loss", "seeds"]
    note = (
        f"First round with the accuracy of the same seed's Retrain after {results.study.rounds} rounds; round from which it is kept; client epochs up to that, of the seeds "
        f"that keep it; scores after {results.study.rounds} rounds. A seed that never has it counts with {results.study.rounds + 1}. Means ± standard deviation over seeds."
    )
    return Grid("Rounds to Retrain's accuracy", headers, rows, frozenset({0}), note, groups=groups)


def tabulate_work(results: Results) -> Grid:
    """Return by how much the exact methods are ahead at the client work of FedEraser and FedRecover."""
    runs = [run for run in label_runs(results) if any(one.has(run) for one in results.reported.values())]
    n = len(results.reported)
    rows = [
        [_label(results, run), *(cell for rival in BESIDE for cell in _compare(results, run, rival, n))] for run in runs
    ] if any(one.tracks(rival) for one in results.reported.values() for rival in BESIDE) else []  # fmt: skip
    headers = [
        "method",
        *(
            head
            for rival in BESIDE
            for head in (f"ahead of {NAMES[rival]} in", "points, from worst to best federation")
        ),
    ]
    note = "Accuracy after as many whole rounds as the other method's client epochs pay for, minus its final accuracy; means over seeds."
    return Grid("At equal client work", headers, rows, frozenset({0}), note)


def _compare(results: Results, run: str, rival: str, n: int) -> list[str]:
    found = [subtract_at_equal_work(one, run, rival) for one in results.reported.values()]
    means = sorted(100 * one.mean for one in found if one.mean is not None)
    if not means:
        return [NOTHING, NOTHING]
    return [f"{len(list_ahead(results, run, rival))} of {n}", f"{means[0]:+.1f} to {means[-1]:+.1f}"]


def tabulate_rules(results: Results) -> Grid:
    """Return every chosen rule on the recommended method and on FedUHB, on the seeds that judge them and on the others."""
    rows: list[list[str]] = []
    for run in dict.fromkeys(filter(None, [results.fast, PAPER])):
        for federations, seeds in (
            (results.confirmed, results.study.confirm),
            (results.reported, results.study.report),
        ):
            for family, ending in results.list_rules().items():
                found = list(results.stop(run, ending, federations).values())
                if not found or results.choice is None or results.choice.rules is None:
                    continue
                score, lost = summarise_stops(found), [one.mean_lost for one in found]
                rows.append([
                    _label(results, run), ", ".join(map(str, seeds)), family, results.choice.rules[family].chosen, f"{score.mean_end:.1f}",
                    f"{score.worst_lost:.2f}", f"{sum(one <= 0.5 for one in lost)} of {len(lost)}", f"{score.worst_seed:.2f}",
                    f"{score.fired} of {sum(len(one.ends) for one in found)}",
                ])  # fmt: skip
    headers = [
        "runs of", "seeds", "rule", "settings", "mean end", "points lost, worst federation", "at most 0.5 points in",
        "worst seed", "fires in",
    ]  # fmt: skip
    note = (
        f"One setting in all federations, replayed on runs of {results.study.long} rounds. A run in which the rule does not fire counts with all of them. Points are those of the "
        "test accuracy of the kept model below the best mean of five rounds; in the worst federation as a mean over seeds. The last model is kept, unless the rule's name says "
        "that the best one is: that with the best held-out accuracy until then."
    )
    return Grid("Stop rules", headers, rows, frozenset({0, 1, 2, 3}), note)


def _label(results: Results, run: str) -> str:
    return next((one.label for one in results.study.list_candidates() if one.name == run), run)


def summarise(results: Results) -> dict[str, Any]:
    """Return the numbers of the page, unrounded, for `json.dumps`."""
    return {
        "title": results.study.title,
        "reported": list(results.study.report),
        "missing": [label for label in list_labels(results.study) if label not in results.reported],
        "verdicts": [{"criterion": one.words, "verdict": one.verdict, "measured": one.measured} for one in judge_study(results)],
        "federations": {
            label: {run: _summarise_run(results, label, run) for run in label_runs(results) if one.has(run)}
            for label, one in results.reported.items()
        },
        "rules": {
            f"{run}{part}": {
                family: {label: {"ends": one.ends, "lost": one.lost, "fired": one.fired} for label, one in results.stop(run, ending, federations).items()}
                for family, ending in results.list_rules().items()
            }
            for run, federations, part in _list_long(results)
        },
    }  # fmt: skip


def _list_long(results: Results) -> Iterator[tuple[str, Federations, str]]:
    """Yield the runs on which rules are replayed, with their federations, and what tells them apart."""
    for run in dict.fromkeys(filter(None, [results.fast, PAPER])):
        yield run, results.reported, ""
    if results.fast is not None and results.confirmed:
        yield results.fast, results.confirmed, ", confirmed"


def _summarise_run(results: Results, label: str, run: str) -> dict[str, Any]:
    federation = results.reported[label]
    return {
        "first_round": count_rounds(federation, run, kept=False).values,
        "kept_from": count_rounds(federation, run).values,
        "client_epochs": count_client_epochs(federation, run).values,
        "test_accuracy": score_final(federation, run).values,
        "test_loss": score_final(federation, run, "test_loss").values,
        **{f"ahead_of_{rival}": subtract_at_equal_work(federation, run, rival).values for rival in BESIDE},
    }
