"""Writes docs/reproduction.md and what the README says of it from results/, so that no number there is typed; run by `make docs`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from feduhb.errors import FeduhbError
from feduhb.report.grids import NOTHING, Grid
from feduhb.report.words import listed
from feduhb_reproduction.cells import ORIGINAL, RETRAIN, Cell
from feduhb_reproduction.report import claims
from feduhb_reproduction.report.claims_noticed import noticed
from feduhb_reproduction.report.claims_parts import DATA
from feduhb_reproduction.report.federations import Federation
from feduhb_reproduction.report.measures import UHB, UHB_ON, Spread, Stops, final, reached, stops, times
from feduhb_reproduction.report.outcomes import saved
from feduhb_reproduction.report.printed import CORRECTED
from feduhb_reproduction.report.spelling import fired
from feduhb_reproduction.report.tables import tables

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reproduction.md"
BEGIN, END = "<!-- paper -->", "<!-- end paper -->"
FIGURES = {
    "curves": "Test accuracy and loss by round",
    "forgetting": "MISR and ASR of every method, with controls",
    "beta": "Accuracy by round for each momentum",
    "lambda": "The stop rule by λ and window",
    "ablation": "Momentum and the stop rule apart, and FedAvg with other server steps",
}
HEAD = f"""\
<!-- Made by feduhb_reproduction.pages from results/: do not edit, run make docs. -->

# The paper, reproduced

`feduhb reproduce` runs the experiments of the FedUHB paper on real data: train, unlearn with every method, attack, for several
seeds and several ways to share the data out. This page is what came of it. Every number on it was computed from the files in
`results/`. A verdict follows from the numbers by a criterion that stands [at the end](#what-was-measured-on-each-claim), and other numbers would
give another; where federations differ, the table says in which a claim holds. {claims.RUNS}"""
AGAIN = """\
### How to run it again

```sh
feduhb reproduce mnist --quick           # a first look on two cores
feduhb reproduce mnist --data FOLDER --engine stacked:tf32 --out results/paper/mnist
feduhb reproduce cifar10 --data FOLDER --engine stacked:tf32 --out results/paper/cifar10
```

Without `--data` the files are downloaded. A cell is one federation of one seed and a file of its own: interrupt the command anywhere and
start it again, and it goes on; what is done is never done again. `--workers N` runs several cells at once, `--missing` lists what is not there
yet, and cells made on other machines are added by copying their files. The [command line](cli.md) says the rest. `make docs` writes this page."""
EACH = f"""\
## What was measured on each claim

{claims.CLEARLY} A number in the name of a federation is the images of a client."""
DIFFERS = """\
- **Images of a client, and how they are shared out.** The paper says neither. Here they are the sizes and partitions named below.
- **Window and ε of the stop rule.** Neither is given. Here the window is all rounds so far and ε is 0; the tables on λ replay other windows.
- **The movement that is judged.** The rule looks at the movement just made and returns the newest model. The paper's algorithm looks at the movement
  before that and returns the model before ([the stop rule](stop-rule.md)).
- **The update.** The paper writes a gradient and trains local epochs. Here a client's update is what its local training changed, and the server takes it whole (step 1).
- **The trigger.** The paper does not describe its backdoor. Here half of each leaver's images carry a bright square and the label 0; the other half stays
  clean, so that there is something to tell the trigger from.
- **MISR.** The attackers are cross-fitted: none is asked about an example that it was fitted on. The rate on test data stands beside every number.
- **No held-out data.** Every image of a client is trained on; accuracy is measured on the data set's own test images.
- **FedEraser and FedRecover** follow the algorithms as published ([methods](methods/index.md)). FedRecover stands here without periodic correction, as in the FedUHB
  paper, and with it. {settings}"""
WHOLE = """\
- **2 classes a client on MNIST** stand with 525 images a client and with all images of the data set: not every class has enough images for 3,000 a client."""


def page(root: Path = ROOT) -> str:
    """Make the page from the results under a folder."""
    evidence = claims.read_evidence(root / "results")
    there = {data: cells for data, cells in evidence.cells.items() if cells}
    grids, found = {data: tables(cells) for data, cells in there.items()}, claims.judged(evidence)
    verdicts = ["## The claims", claims.counted(found), claims.table(found).rstrip()]
    each = [EACH, *(f"### {topic}\n\n{text}" for topic, text in claims.topics(found).items())]
    ran = [part for data, cells in there.items() for part in _ran(data, cells, grids[data]["runs"])]
    measured = [part for data in there for part in _shown(root, data, grids[data])]
    differs = ["## Where this differs from the paper", f"{_differs(there)}\n{_precision(there.values())}"]
    seen = ["## What we noticed", "\n".join(f"- {line}" for line in noticed(evidence))]
    return (
        "\n\n".join([HEAD, *verdicts, *seen, *differs, "## What was run", *ran, AGAIN, *measured, *each])
        + "\n"
    )


def pictures(root: Path = ROOT) -> dict[Path, Path]:
    """Give every figure of the page: the file in results/ by the one in docs/ that is its copy."""
    images = root / "docs" / "images" / "paper"
    return {
        images / f"{data}-{path.name}": path
        for data in DATA
        for kind in FIGURES
        for path in sorted((root / "results" / "paper" / data).glob(f"{kind}*.png"), key=_by_size)
    }


def front(root: Path = ROOT) -> str:
    """Make the README's table, every federation in a line, and what is to be read with it."""
    evidence = claims.read_evidence(root / "results")
    found = {name: there for data, name in DATA.items() if (there := evidence.clean(data))}
    rounds = " or ".join(f"{n}" for n in sorted({one.rounds for there in found.values() for one in there}))
    lines = [
        f"| federation | original | Retrain, {rounds} rounds | FedUHB, under its rule, first has that at round | its rule ends it at round | FedUHB then | FedEraser | FedRecover |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
        *(f"| {' | '.join(_line(name, one))} |" for name, there in found.items() for one in there),
    ]
    beside = " ".join(each for make in (_paced, _fires, _asked) if (each := make(found)))
    return "\n".join([claims.counted(claims.judged(evidence)), "", *lines, *(["", beside] if beside else [])])


def _line(data: str, one: Federation) -> list[str]:
    """Give a federation's cells of the README's table."""
    reach = reached(one, UHB)
    return [
        f"{data}, {one.label}",
        *(_shares(final(one, run)) for run in (ORIGINAL, RETRAIN)),
        f"{reach.mean:.0f}" if reach.all and reach.mean is not None else "not always",
        _ended(stops(one, UHB_ON)),
        *(_shares(final(one, run)) for run in (UHB, "federaser", "fedrecover")),
    ]


def _ended(ends: Stops) -> str:
    """Spell the mean round after which a rule leaves a run, and in how many seeds it fires, where not in all."""
    if not ends.fires:
        return "never" if ends.n else NOTHING
    return f"{ends.executed.mean:.0f}" + ("" if ends.fires == ends.n else f" ({fired(ends)} seeds)")


def _paced(found: Mapping[str, Sequence[Federation]]) -> str:
    """Say how long a round of FedUHB takes, and in which federations that was timed."""
    took = [(one, times(one, UHB), times(one, RETRAIN)) for there in found.values() for one in there]
    ratios = [
        (one, our / their)
        for one, ours, theirs in took
        if ours and theirs and (our := ours.per_round.mean) and (their := theirs.per_round.mean)
    ]
    if not ratios:
        return ""
    where = listed(list(dict.fromkeys(one.short for one, _ in ratios)))
    return f"A round of FedUHB takes {_between([each for _, each in ratios], '.2f')} times as long as one of Retrain (timed: {where})."


def _fires(found: Mapping[str, Sequence[Federation]]) -> str:
    """Say in how many runs the rule fires."""
    ends = {data: [stops(one, UHB_ON) for one in there] for data, there in found.items()}
    told = [
        f"{sum(each.fires for each in these)} of {runs} runs on {data}"
        for data, these in ends.items()
        if (runs := sum(each.n for each in these))
    ]
    some = any(0 < each.fires < each.n for these in ends.values() for each in these)
    last = "; a run that it does not end counts with its last round" if some else ""
    return f"FedUHB's rule fires in {listed(told)}{last}." if told else ""


def _asked(found: Mapping[str, Sequence[Federation]]) -> str:
    """Say what FedEraser and FedRecover ask of clients, against Retrain."""
    every = [one for there in found.values() for one in there]
    eraser = _of_retrain(every, "federaser")
    recover = {data: share for data, there in found.items() if (share := _of_retrain(there, "fedrecover"))}
    if not eraser or not recover:
        return ""
    tracks = [track for one in every for track in one.tracks("federaser").values()]
    ran = _between([track.rounds for track in tracks], ".0f")
    sums = [track.sums for track in tracks if track.sums.get("client_rounds")]
    long = _between([each["client_epochs"] / each["client_rounds"] for each in sums], ".3g")
    whole = every[0].cells[0].place
    return (
        f"FedEraser runs {ran} rounds of {long} local epochs, in the first of which it asks nobody, and asks for {eraser} of the client rounds of Retrain, which runs {whole.rounds} of {whole.epochs}; "
        f"FedRecover asks for {listed([f'{share} on {data}' for data, share in recover.items()])}."
    )


def _of_retrain(found: Iterable[Federation], run: str) -> str:
    """Spell which share of Retrain's client rounds a run asks for: the range of the federations' means."""
    means = [mean for one in found if (mean := saved(one, run).mean) is not None]
    return f"{_between([100 * (1 - mean) for mean in means], '.0f')} %" if means else ""


def _between(values: Iterable[float], spec: str) -> str:
    """Spell a range."""
    every = sorted(values)
    return " to ".join(dict.fromkeys(format(each, spec) for each in (every[0], every[-1])))


def filled(readme: str, root: Path = ROOT) -> str:
    """Put the table and what belongs to it into the README, between its marks."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{front(root)}\n{END}{after}"


def _shares(found: Spread) -> str:
    if found.mean is None:
        return NOTHING
    return f"{found.mean:.1%}" if found.sd is None else f"{found.mean:.1%} ± {100 * found.sd:.1f}"


def write(root: Path = ROOT) -> None:
    """Write the page, copy its figures, and fill in the README's table."""
    text = page(root)
    for copy, figure in pictures(root).items():
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(figure, copy)
    (root / "docs" / PAGE.name).write_text(text, encoding="utf-8")
    readme = root / "README.md"
    if readme.exists():
        readme.write_text(filled(readme.read_text(encoding="utf-8"), root), encoding="utf-8")


def _by_size(path: Path) -> tuple[int, str]:
    return len(path.name), path.name


def _ran(data: str, cells: Sequence[Cell], runs: Grid) -> Iterator[str]:
    """Say what was run, when, and on what."""
    place, hours = cells[0].place, sum(cell.made["seconds"] for cell in cells) / 3600
    commands = listed(
        [
            f"`{command}`"
            for command in dict.fromkeys(made["command"] for cell in cells for made in cell.origins)
        ]
    )
    yield (
        f"**{DATA[data]}**: {len(cells)} cells, made by {commands}. {place.clients} clients, {len(place.forget.split(','))} of them to be "
        f"forgotten, {place.rounds} rounds, {place.epochs} local epochs, batch {place.batch_size}, learning rate {place.lr:g}; FedUHB with "
        f"β {place.momentum:g} and λ {place.scale:g}. Versions: {listed(_versions(cells))}. The cells took {hours:.1f} hours, added up."
    )
    yield _grid(runs)


def _shown(root: Path, data: str, grids: Mapping[str, Grid]) -> Iterator[str]:
    """Show a data set's figures and tables."""
    yield f"## {DATA[data]}: figures and tables"
    for copy, figure in pictures(root).items():
        if figure.parent.name == data:
            kind, _, size = figure.stem.partition("-")
            more = {"": "", "all": ", all images"}.get(size, f", {size} images a client")
            yield f"![{DATA[data]}: {FIGURES[kind]}{more}](images/paper/{copy.name})"
    for name, grid in grids.items():
        if name != "runs":
            yield f"### {DATA[data]}: {grid.title}"
            yield _grid(grid)


def _grid(grid: Grid) -> str:
    return "\n\n".join(part for part in (grid.markdown().rstrip(), grid.note, *grid.sentences) if part)


def _differs(grids: Mapping[str, Sequence[Cell]]) -> str:
    """Say where this differs, with the settings that stand in the cells."""
    found = dict.fromkeys(told for cells in grids.values() for cell in cells if (told := _settings(cell)))
    said = "The FedUHB paper gives neither FedRecover's T_w, T_f and s nor FedEraser's Δt and r."
    lines = DIFFERS.format(settings=f"{said} Here they are {' or '.join(found)}." if found else said)
    whole = [cell.place for cell in grids.get("mnist", ()) if cell.place.per_client is None]
    return f"{lines}\n{WHOLE}" if whole else lines


def _settings(cell: Cell) -> str:
    runs = {
        name: cell.runs[name].settings for name in ("fedrecover", CORRECTED, "federaser") if name in cell.runs
    }
    if len(runs) < 3 or not all(runs.values()):
        return ""
    plain, corrected, eraser = runs.values()
    return (
        f"T_w {plain['warmup']}, T_f {plain['final']}, s {plain['buffer']} and, where it is corrected, T_c {corrected['correction']}; "
        f"Δt {eraser['interval']} and r {eraser['ratio']:g}"
    )


def _precision(grids: Iterable[Sequence[Cell]]) -> str:
    found = sorted({str(cell.made["engine"]["precision"]) for cells in grids for cell in cells})
    return f"- **Precision.** The paper does not say. Here it was {listed(found)}; what that changes is measured under [speed](speed.md)."


def _versions(cells: Sequence[Cell]) -> list[str]:
    found = {
        f"{name} {version if version[:1].isdigit() else 'from source, at the commits below'}"
        for cell in cells
        for made in cell.origins
        for name, version in made["versions"].items()
    }
    return sorted(found)


if __name__ == "__main__":
    try:
        write(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
    except FeduhbError as error:
        sys.exit(f"docs/reproduction.md is not written: {error}")
