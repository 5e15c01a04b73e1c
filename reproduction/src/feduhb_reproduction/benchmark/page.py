"""The page of the benchmarks, from their folders: five sentences, a figure, tables, and what was not run yet. It trains nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from feduhb import RapidRetrain
from feduhb.report.grids import Grid
from feduhb.report.words import NOTHING, join_names
from feduhb.runs import write_atomically
from feduhb_reproduction.benchmark.advice import advise
from feduhb_reproduction.benchmark.design import Benchmark, find_benchmark, read_benchmark
from feduhb_reproduction.benchmark.figure import draw_work
from feduhb_reproduction.benchmark.results import (
    ATTACKS,
    CHANGE,
    LIRA,
    LOSS,
    PLANTED,
    Federations,
    has_served,
    is_exact,
    keeps_backdoor,
    leaks,
    list_broken,
    list_requirements,
    list_served,
    measure_backdoor,
    measure_distance,
    measure_membership,
    measure_original,
    measure_relearn,
    name_method,
    read_federations,
    sum_costs,
)
from feduhb_reproduction.cells import ORIGINAL, RETRAIN
from feduhb_reproduction.federations import Federation
from feduhb_reproduction.measures import Spread, final_value
from feduhb_reproduction.words import format_counts, format_numbers, format_points, format_shares

BENCHMARKS = ("breast-cancer", "mnist-5k", "mnist", "cifar10")
FOLDER = "benchmark"  # in results/
FIGURE = "work"
HEADS = {LOSS: "loss", CHANGE: "change", LIRA: "LiRA"}
LARGE = ("mnist", "cifar10")  # for a GPU
ALT = "Test accuracy against the epochs that clients trained, every method"
INTRO = """\
Which method should you choose, and what does it leave behind? Every registered method serves the same requests on the same federations, and its model is audited beside
Retrain's of the same seed. Methods have their default settings and run as many rounds as the training, unless they have a number of their own. Rollback is left out: with
all clients in every round it is Retrain."""
MEASURES = f"""\
- **Accuracy** is on test data, after the last round. **Backdoor** is the share of triggered test images that get the attacker's label.
- **Canaries** are the leavers' wrongly labelled examples. *Loss*: the AUC of the loss attack on them minus the AUC in Retrain of the same seed, in points. *Change*: the AUC
  of the attack that ranks examples by how much better the model knows them than Retrain does, minus one half. *LiRA*: as loss, with shadow federations.
- ***Leaks*** marks a loss or change above 0 by Student's 95 % interval over the seeds, if the same holds for the original: otherwise that attack has no power here. There is no
  correction for the number of comparisons, and with one seed nothing is marked. A model that knows canaries worse than Retrain does, with a change below 0, is not marked.
- ***Backdoor stays*** marks a success rate more than {100 * PLANTED:.0f} points above Retrain's on average, and above it by the same interval.
- **Distance** is that of the weights to Retrain's. It does not show by itself whether anything was forgotten; a huge one means that some weights
  grew without bound, see the page of the method. **Relearn** is the number of rounds with all clients until
  the model has the original's accuracy on the forgotten data again. A seed that never reached it counts with one round more than were tried; ≥ and > mark this.
- **Client epochs** include those of leavers. **Sent** is up and down. **Stored** is what the federation must have kept from the training.
  No column counts the server's work, such as the training of WuDistillation. The cells' files hold its seconds; they are not
  shown, because the machines had other work meanwhile.
- Numbers are means over the seeds ± their standard deviation. The head of a column says over how many seeds it is if not over all: with the others a leaver has too few
  examples for canaries. “Original” forgot nothing: it shows how much an attack can find.
- A difference that is not found is not a proof of forgetting: with few canaries an attack has little power."""
UNEQUAL = """\
An epoch of RapidRetrain is more work than one of Retrain: its clients compute a gradient for each example."""
RUN = """\
## Run it

```sh
feduhb benchmark breast-cancer --out results/benchmark/breast-cancer     # minutes on two cores
feduhb benchmark mnist-5k --out results/benchmark/mnist-5k
feduhb benchmark mnist --data FOLDER --engine stacked:tf32 --out results/benchmark/mnist       # on a GPU
feduhb benchmark cifar10 --data FOLDER --engine stacked:tf32 --out results/benchmark/cifar10
python -m feduhb_reproduction.pages                                      # this page
```

- A cell is one federation with one seed, and has its own file. An interrupted command continues where it ended. `--only iid` and `--seeds 0,1` choose cells, for several
  machines; copy their files into one folder.
- With `--minutes 6` no run begins after six minutes, and running ones are interrupted. The runs that were made are audited and written. Start the command again for the next piece, also
  on another machine that has only the cells' files: it repeats the training and Retrain of an unfinished cell, and the runs that were interrupted.
- On a GPU six cells are made at once; `--workers` changes that.
- To add a method of your own, read [bring a method](../bring-a-method.md)."""


def make_page(results: Path, pictures: Mapping[str, str]) -> Iterator[str]:
    """Yield the parts of the page in docs/, from a folder of results.

    Args:
        pictures: by the name of a benchmark, the path of its figure, if there is one.
    """
    designs = {name: read_benchmark(find_benchmark(name)) for name in BENCHMARKS}
    found = {name: read_federations(results / FOLDER / name) for name in BENCHMARKS}
    whole = {label: one for each in found.values() for label, one in each.items()}
    yield "# Every method, side by side"
    yield INTRO
    yield (
        "## In five sentences, and one on rows"
        if any(one.rows for one in whole.values())
        else "## In five sentences"
    )
    yield advise(whole)
    yield describe_missing(designs, found)
    for name, bench in designs.items():
        if found[name] and name in pictures:
            yield f"![{ALT}: {bench.title}]({pictures[name]})"
    yield "## How to read the tables"
    yield MEASURES
    for name, bench in designs.items():
        if found[name]:
            yield f"## {bench.title}"
            yield from render_benchmark(bench, found[name], level=3)
    yield RUN


def describe_missing(designs: Mapping[str, Benchmark], found: Mapping[str, Federations]) -> str:
    """Return which benchmarks were not run, or not all of them."""
    lines = []
    for name, bench in designs.items():
        wanted = sum(1 for _ in bench.places())
        there = sum(len(one.cells) for one in found[name].values())
        if not there:
            lines.append(
                f"- **{bench.title}: not run yet{', for want of a GPU' if name in LARGE else ''}.** `{format_command(name)}` makes its {wanted} cells."
            )
        elif there < wanted:
            lines.append(f"- **{bench.title}: incomplete**, {there} of {wanted} cells.")
    return "\n".join(["What these sentences do not cover:\n", *lines]) if lines else ""


def format_command(name: str) -> str:
    """Return the command that runs a benchmark, as a person would type it."""
    words = [
        "feduhb",
        "benchmark",
        name,
        *(["--data FOLDER", "--engine stacked:tf32"] if name in LARGE else []),
    ]
    return " ".join([*words, "--out", f"results/{FOLDER}/{name}"])


def render_benchmark(bench: Benchmark, federations: Federations, level: int = 2) -> Iterator[str]:
    """Yield the parts of a benchmark: how it was made, and two tables for each federation."""
    mark = "#" * level
    yield describe_state(bench, federations)
    for label, one in federations.items():
        yield f"{mark} {label}"
        yield tabulate_findings(one).to_markdown().rstrip()
        yield tabulate_costs(one).to_markdown().rstrip()
        if has_served(one, RapidRetrain.name):
            yield UNEQUAL
        if broken := list_broken(one):
            yield "\n".join(f"- {line}" for line in broken)


def describe_state(bench: Benchmark, federations: Federations) -> str:
    """Return what was run, and what made it."""
    cells = [cell for one in federations.values() for cell in one.cells]
    made = [made for cell in cells for made in cell.origins]
    devices = join_names(sorted({f"{one['device']} ({one['engine']['name']}, {one['engine']['precision']})" for one in made}))  # fmt: skip
    commands = join_names(sorted({f"`{one['command']}`" for one in made}))
    commits = join_names(sorted({str(one["commit"]) for one in made}))
    place, shadowed = cells[0].place, [cell.place.shadows for cell in cells if cell.place.shadows]
    size = "" if place.per_client is None else f" with {place.per_client:,} examples each"
    said = [
        f"{len(cells)} cells of {sum(1 for _ in bench.places())}, made by {commands} on {devices} at commit {commits}.",
        f"{place.clients} clients{size}, leaving: {place.forget}; {place.rounds} rounds, {place.epochs} local epochs, batch {place.batch_size}, learning rate {place.lr:g}.",
        f"{place.held_out:.0%} of each client's data is held out.",
        f"The leavers carry canaries{' and a backdoor' if place.backdoor else '; there is no backdoor, which needs images'}.",
    ]
    if any(one.rows for one in federations.values()):
        said.append(
            "Where the name says “rows”, they stay, and only their canaries and triggered images are forgotten."
        )
    if place.public is not None:
        said.append(f"The server holds {place.public} unlabelled examples that no client has.")
    if shadowed:
        said.append(
            f"{len(shadowed)} cells were attacked by LiRA with {max(shadowed)} shadow federations each."
        )
    return " ".join(filter(None, [*said, bench.chosen]))


class Column(NamedTuple):
    """A column of a table of findings."""

    head: str
    read: Callable[[str], str]  # the text for a run, by name
    original: str = NOTHING
    is_text: bool = False


def tabulate_findings(federation: Federation) -> Grid:
    """Return what each method's model does and gives away."""
    attacks = (*ATTACKS, LIRA) if federation.cells[0].place.shadows else ATTACKS
    columns = [
        Column("method", name_method, "original", is_text=True),
        Column("exact", lambda name: "yes" if is_exact([federation], name) else "", "", is_text=True),
        Column("accuracy", lambda name: format_shares(final_value(federation, name))),
        *([_make_backdoor_column(federation)] if federation.backdoor else []),
        *(_make_attack_column(federation, attack) for attack in attacks),
        Column("found", lambda name: _list_found(federation, name), is_text=True),
        Column("distance", lambda name: format_numbers(measure_distance(federation, name))),
        Column("relearn", lambda name: _format_relearn(federation, name)),
    ]
    rows = [[column.read(name) for column in columns] for name in list_served(federation)]
    return Grid(
        "", [column.head for column in columns], [[column.original for column in columns], *rows],
        frozenset(place for place, column in enumerate(columns) if column.is_text),
    )  # fmt: skip


def _make_backdoor_column(federation: Federation) -> Column:
    original = format_shares(measure_backdoor(federation, RETRAIN, ORIGINAL))
    return Column("backdoor", lambda name: format_shares(measure_backdoor(federation, name)), original)


def _make_attack_column(federation: Federation, attack: str) -> Column:
    """Return the column of an attack on canaries; its head has the number of seeds, if not all have canaries."""
    original = measure_original(federation, attack)
    count = (
        ""
        if original.n in (0, len(federation.cells))
        else f" ({original.n} of {len(federation.cells)} seeds)"
    )
    return Column(
        f"canaries, {HEADS[attack]}{count}", lambda name: format_points(measure_membership(federation, name, attack)), format_points(original)
    )  # fmt: skip


def _list_found(federation: Federation, name: str) -> str:
    found = {"leaks": leaks(federation, name), "backdoor stays": keeps_backdoor(federation, name)}
    return ", ".join(word for word, is_found in found.items() if is_found) or NOTHING


def _format_relearn(federation: Federation, name: str) -> str:
    """Return the mean number of rounds; > if no seed was there by the end, >= if some were not."""
    found, most = measure_relearn(federation, name), federation.cells[0].place.relearn
    if found.values and min(found.values) > most:
        return f"> {most}"
    return ("≥ " if found.values and max(found.values) > most else "") + format_counts(found)


def tabulate_costs(federation: Federation) -> Grid:
    """Return what each method costs and needs."""
    rows = [
        [
            name_method(name), format_counts(sum_costs(federation, name, "client_epochs")), format_counts(sum_costs(federation, name, "leaver_epochs")),
            _format_bytes(sum_costs(federation, name, "bytes_up", "bytes_down")), _format_bytes(sum_costs(federation, name, "stored_bytes")),
            ", ".join(list_requirements([federation], name)) or NOTHING,
        ]
        for name in list_served(federation)
    ]  # fmt: skip
    heads = ["method", "client epochs", "of leavers", "MB sent", "MB stored", "needs"]
    return Grid("", heads, rows, frozenset({0, 5}))


def _format_bytes(spread: Spread) -> str:
    return NOTHING if spread.mean is None else f"{spread.mean / 1e6:,.2f}"


def write_benchmark(bench: Benchmark, out: Path) -> list[Path]:
    """Write the report on a benchmark's cells beside them: README.md and the figure; return its files."""
    from feduhb.report.drawing import to_png

    federations = read_federations(out)
    figure = draw_work(federations)
    made = {} if figure is None else {f"{FIGURE}.png": to_png(figure)}
    pictured = [f"![{ALT}]({FIGURE}.png)"] if made else []
    page = [f"# Every method, side by side ({bench.title})", advise(federations), *pictured, MEASURES]
    page += render_benchmark(bench, federations)
    made = {"README.md": ("\n\n".join(page) + "\n").encode(), **made}
    for name, content in made.items():
        write_atomically(out / name, content, private=False)
    return [out / name for name in made]


def print_rows(out: Path, own: Sequence[str]) -> list[str]:
    """Return the tables for a terminal; rows of the user's own methods are marked."""
    lines: list[str] = []
    for label, one in read_federations(out).items():
        findings, costs = tabulate_findings(one), tabulate_costs(one)
        spent = {row[0]: row[1:3] for row in costs.rows}
        heads = ["", *findings.headers, *costs.headers[1:3]]
        rows = [
            ["*" if row[0] in own else "", *row, *spent.get(row[0], [NOTHING] * 2)] for row in findings.rows
        ]
        widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
        lines += [
            label,
            *(
                "  ".join(text.ljust(wide) for text, wide in zip(row, widths, strict=True)).rstrip()
                for row in [heads, *rows]
            ),
            *list_broken(one),
            "",
        ]
    return lines
