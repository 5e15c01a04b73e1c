"""What a federation of a million clients would cost, computed from what was measured."""

from __future__ import annotations

from typing import Any

MILLION = 1_000_000
IMAGES, EPOCHS = 100, 5  # of a client in the reckoning
ROUNDS = 40  # the demo's; nobody measured how many a million clients need
PIXELS = 28 * 28 * 4  # bytes of an image in float32
LINE = 1e9  # bits a second of a server's line
H200_IMAGES = 18 * 3000 * 5  # of the measured round


def facts(all: dict[str, Any]) -> dict[str, float]:
    """What the reckoning is made of: all of it measured, but for the sizes above."""
    cases = all["growth"]["cases"]
    few, many = cases["clients:pool:1000"], cases["clients:pool:10000"]
    more = many["clients"] - few["clients"]
    return {
        "parameters": many["parameters"],
        "payload": many["bytes_up"] / many["clients"],
        "client_seconds": (many["seconds"] - few["seconds"]) / more,
        "record": (many["record_bytes"] - few["record_bytes"]) / more,
        "lists": next(one["bytes_a_client"] for name, one in cases.items() if name.startswith("lists:")),
        "rate": all["side-by-side"]["implementations"]["pool"]["images_per_second"],
        "gpu_rate": H200_IMAGES / (all["stacked-h200"]["ms_a_round"]["mnist tf32"]["median"] / 1e3),
        "copies": _copies(cases),
    }


def _copies(cases: dict[str, Any]) -> float:
    """Memory beyond data and model in models, of the largest model measured."""
    largest = max((one for name, one in cases.items() if name.startswith("parameters:")), key=lambda one: one["parameters"])  # fmt: skip
    return largest["beyond_mib"] * 2**20 / largest["parameters"] / 4


def arithmetic(all: dict[str, Any]) -> str:
    """The numbers and how they follow, one a line."""
    f = facts(all)
    cases = all["growth"]["cases"]
    memory = all["growth"]["machine"]["memory_gib"]
    data = MILLION * IMAGES * PIXELS
    lines = [
        f"- **A model on its way**: {f['parameters']:,.0f} parameters x 4 bytes = {spelled(f['payload'])}, down and up again, for every client asked.",
        f"- **The least a client costs** on two cores, with two images and one epoch: ({_seconds(all, 10000):.2f} s - {_seconds(all, 1000):.2f} s) / 9,000 clients = {f['client_seconds'] * 1e3:.2f} ms. A million of them: {lasting(MILLION * f['client_seconds'])} a round.",
        f"- **A client with {IMAGES} images and {EPOCHS} epochs**: {IMAGES * EPOCHS} images / {f['rate']:,.0f} images/s = {IMAGES * EPOCHS / f['rate'] * 1e3:.0f} ms on two cores; / {f['gpu_rate']:,.0f} images/s = {IMAGES * EPOCHS / f['gpu_rate'] * 1e3:.2f} ms on an H200 in tf32 (its rate with 3,000 images a client: a bound for small ones, not a promise).",
        f"- **Memory of a round** beyond the data, at most: {_memory(cases)}. Answers are folded into the mean as they come: kept until the end, those of 10,000 clients would be {spelled(10_000 * f['payload'])}.",
        f"- **Memory of the lists**: {f['lists']:,.0f} bytes a client x 1,000,000 = {spelled(f['lists'] * MILLION)}.",
        f"- **Memory of the data**: 1,000,000 x {IMAGES} images x {PIXELS:,} bytes = {spelled(data)}. This machine has {memory:g} GiB, so it holds the data of {memory * 2**30 / (IMAGES * PIXELS + f['lists']):,.0f} such clients.",
        f"- **Records**: {f['record']:.1f} bytes a client asked and round. Everyone, {ROUNDS} rounds: {spelled(f['record'] * MILLION * ROUNDS)}.",
        f"- **A larger model**: with 100 million parameters the pool held {f['copies']:.1f} models' worth at most, beyond the server's one, on two cores. So {memory:g} GiB / (4 bytes x {f['copies'] + 1:.1f}) end at about {memory * 2**30 / 4 / (f['copies'] + 1) / 1e6:,.0f} million parameters.",
    ]
    return "\n".join(lines)


def _memory(cases: dict[str, Any]) -> str:
    pool = [one for name, one in cases.items() if name.startswith("clients:pool:")]
    return ", ".join(f"{one['beyond_mib']:,.0f} MiB with {one['clients']:,} clients" for one in pool)


def _seconds(all: dict[str, Any], clients: int) -> float:
    return all["growth"]["cases"][f"clients:pool:{clients}"]["seconds"]


def sampling(all: dict[str, Any]) -> str:
    """A round, and forty, by the number of clients asked in each."""
    f = facts(all)
    lines = [
        f"| asked a round | two cores | one H200, at best | down and up | through a line of 1 Gbit/s | {ROUNDS} rounds, two cores | bytes of {ROUNDS} rounds | history of {ROUNDS} rounds |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for asked in (100, 1_000, 10_000, MILLION):
        images = asked * IMAGES * EPOCHS
        moved = 2 * asked * f["payload"]
        kept = ROUNDS * (asked + 1) * f["payload"]
        cells = (
            f"{asked:,}", lasting(images / f["rate"]), lasting(images / f["gpu_rate"]), spelled(moved), lasting(8 * moved / LINE),
            lasting(ROUNDS * images / f["rate"]), spelled(ROUNDS * moved), spelled(kept),
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def spelled(size: float) -> str:
    """Bytes in words, in powers of a thousand."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} PB"


def lasting(seconds: float) -> str:
    """Seconds in words."""
    for unit, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"
