"""What was measured on a GPU, for docs/speed.md and the README."""

from __future__ import annotations

from statistics import median

from layout import Results, source, table
from precision import chance, compared

PRECISIONS = ("float32", "tf32", "bf16")
NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}


def timings(measured: Results) -> str:
    """Milliseconds of a round by precision, and the loop's."""
    found = measured["stacked-h200"]
    rows = [
        (
            words,
            *(f"{_median(found, task, precision):.1f} ms" for precision in PRECISIONS),
            f"{found['loop_ms_a_round'][task]:,} ms",
        )
        for task, words in _rounds(found).items()
    ]
    masked = found["ragged"]["masked"]
    note = f"In the last row {masked:.1%} of the places in batches are masked. {source(found)}"
    return f"{table(('round', *PRECISIONS, '`loop` on the same GPU'), rows)}\n\n{note}"


def _rounds(found: Results) -> dict[str, str]:
    """Describe the rounds that were timed."""
    images, ragged = found["images"], found["ragged"]
    even = {task: f"{name}, {images[task]:,} images a client" for task, name in NAMES.items()}
    together = images["ragged"] * found["clients"]
    sizes = f"{ragged['least']:,} to {ragged['most']:,} a client"
    return {**even, "ragged": f"MNIST, the same {together:,} images by Dirichlet(0.1): {sizes}"}


def _median(found: Results, task: str, precision: str) -> float:
    return found["ms_a_round"][f"{task} {precision}"]["median"]


def distances(measured: Results) -> str:
    """How far answers lie from those in float64."""
    found = measured["stacked-h200"]["distance_from_float64"]
    kinds = ("loop float32", *PRECISIONS)
    rows = [
        (f"{name}'s shapes", *(f"{found[task][kind]:.1e}" for kind in kinds)) for task, name in NAMES.items()
    ]
    return table(("", "loop, float32", *PRECISIONS), rows)


def precisions(measured: Results) -> str:
    """What a precision costs in accuracy, in words."""
    found = measured["precision-h200"]
    every, exact = {each.precision: each for each in compared(found)}, found["accuracy"]["float32"]
    ends = ", ".join(f"{each.last:.2%} in {each.precision}" for each in every.values())
    others = [each for each in every.values() if each.precision != "float32"]
    apart = " and ".join(f"{each.errors:.2f} ({each.precision})" for each in others)
    names = " and ".join(each.precision for each in others)
    usual = chance(len(exact))
    verdict = "within" if all(each.errors <= usual for each in others) else "beyond"
    took = ", ".join(f"{median(found['seconds'][precision]):.1f}" for precision in every)
    return (
        f"Test accuracy after the last of {found['rounds']} rounds, mean of {len(exact)} seeds: {ends}. Seed by seed the curves of {names} differ from float32's by "
        f"{100 * max(each.mean for each in others):.2f} points on average and {100 * max(each.most for each in others):.2f} at most; the seeds' own standard deviation is "
        f"{100 * every['float32'].spread:.2f} points on average over the rounds. The means of the seeds lie at most {apart} standard errors from float32's, "
        f"where chance alone gives up to {usual:.1f}: {verdict} seed noise. The rounds took {took} s of training, the median of the seeds. {source(found)}"
    )


def in_short(measured: Results) -> str:
    """The rounds of the paper in one sentence."""
    found = measured["stacked-h200"]
    single, fast = (
        [f"{_median(found, task, precision):.0f}" for task in NAMES] for precision in ("float32", "tf32")
    )
    loop = [f"{found['loop_ms_a_round'][task] / 1000:.1f}" for task in NAMES]
    return (
        f"On one {found['machine']['gpu']} the `stacked` engine trains a whole MNIST round of the paper ({found['clients']} clients, {found['images']['mnist']:,} images each, 5 epochs) in "
        f"{fast[0]} ms in tf32 and {single[0]} ms in float32, and a CIFAR-10 round ({found['images']['cifar10']:,} images each) in {fast[1]} and\n{single[1]} ms, where a loop over clients "
        f"takes {loop[0]} and {loop[1]} s ([numbers, profile, precision](docs/speed.md), [what scale costs](docs/scale.md))."
    )
