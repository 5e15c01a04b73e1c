"""What an audit measures on finished models, apart from verdicts: accuracies, distances, cost, relearning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from feduhb.core.flat import with_params
from feduhb.core.types import ClientId
from feduhb.data.federation import Examples, Federation
from feduhb.data.request import Request
from feduhb.evaluate.accuracy import outputs, scores
from feduhb.evaluate.distance import Distance, distance
from feduhb.experiment.audited import Accuracies, ClientRow, Clients, Cost, Relearn
from feduhb.experiment.plans import engine_of
from feduhb.experiment.runs import Run, method_for
from feduhb.methods.replaying import replays
from feduhb.methods.retrain import Plain
from feduhb.records import Round, RunFolder
from feduhb.run.folder import weights_digest
from feduhb.run.loop import run as rounds_of
from feduhb.run.progress import Step

Parts = Mapping[ClientId, Examples]


def compared(
    federation: Federation, request: Request
) -> tuple[dict[ClientId, Examples], dict[ClientId, Examples]]:
    """Give the forgotten examples, and held-out ones of the same clients to compare them with: of the same class, where a class was forgotten."""
    members = federation.forgotten(request)
    others = {
        client: held
        if client in request.clients or client in request.rows
        else held.where(request.class_mask(held.targets))
        for client, held in federation.held_out.items()
        if client in members
    }
    both = [client for client in members if len(others.get(client, ()))]
    return {c: members[c] for c in both}, {c: others[c] for c in both}


def share_right(model: nn.Module, parts: Iterable[Examples], federation: Federation) -> float | None:
    """Give the accuracy over several lists of examples together; None where targets are no labels or nothing is there."""
    right = total = 0.0
    for examples in parts:
        if not len(examples):
            continue
        share = scores(model, examples, federation.loss)[1]
        if share != share:  # NaN
            return None
        right, total = right + share * len(examples), total + len(examples)
    return right / total if total else None


def accuracies(run: Run, federation: Federation, request: Request) -> Accuracies:
    """Measure a model on what was forgotten, on what was kept, and on test data."""
    model = run.model()
    kept = federation.without(request).clients.values()
    gone = federation.forgotten(request).values()
    return Accuracies(*(share_right(model, parts, federation) for parts in (gone, kept, [federation.test])))


def remaining_clients(models: Mapping[str, Run], federation: Federation, request: Request) -> Clients:
    """Measure everyone who stays before and after: on held-out data where everyone has some."""
    rest = federation.without(request)
    held = all(len(rest.held_out.get(client, ())) for client in rest.clients)
    data = rest.held_out if held else rest.clients
    made = {name: run.model() for name, run in models.items()}

    def row(client: ClientId) -> ClientRow:
        found = (share_right(made[n], [data[client]], rest) for n in ("original", "unlearned", "retrain"))
        return ClientRow(client, len(data[client]), *found)

    return Clients("held-out data" if held else "training data", tuple(row(c) for c in sorted(rest.clients)))


def distances(models: Mapping[str, Run], federation: Federation) -> dict[str, Distance]:
    """Measure how far the audited model and the original are from Retrain."""
    x = federation.test.all()[0]
    said = {name: outputs(run.model(), x) for name, run in models.items()}
    far = {name: run.params.detach().cpu() for name, run in models.items()}
    return {n: distance(far[n], far["retrain"], said[n], said["retrain"]) for n in ("unlearned", "original")}


def cost(run: Run) -> Cost:
    """Sum up what a run took."""
    total: Callable[[str], float] = lambda name: sum(getattr(record, name) for record in run.rounds)  # noqa: E731
    key = "history_bytes_kept" if run.forgot is None else "history_bytes_read"
    kept = RunFolder(run.folder).result().get(key, 0) if run.folder else 0
    if not run.folder and replays(run.method):
        kept = run.method.history.bytes  # pyright: ignore[reportAttributeAccessIssue]
    return Cost(
        len(run.rounds),
        int(total("client_epochs")),
        int(total("bytes_down")),
        int(total("bytes_up")),
        int(kept),
        total("client_seconds") + total("server_seconds"),
    )


def relearned(
    original: Run,
    models: Mapping[str, Run],
    request: Request,
    most: int,
    step: Step,
    known: dict[str, int | None],
) -> Relearn | None:
    """Let everybody train on from each model by FedAvg, and count the rounds until the forgotten data is known as before.

    Canaries are trained on like the rest but not counted: a wrong label takes long to learn by heart for any model.
    ``known`` remembers what a model took, by its weights, for audits that share a control.
    """
    goal = share_right(original.model(), _plain(original, request), original.federation)
    if most < 1 or goal is None:
        return None

    def rounds(name: str) -> int | None:
        start = models[name].params
        digest, show = weights_digest(start), step(f"relearning: {name}", most)
        if digest not in known:
            known[digest] = _rounds_to(goal, start, original, request, most, show)
        return known[digest]

    return Relearn(goal, most, rounds("unlearned"), rounds("retrain"))


def _plain(original: Run, request: Request) -> list[Examples]:
    """Give the forgotten examples that are no canaries."""
    gone = original.federation.forgotten(request).values()
    return [e if e.marked is None else e.where(~e.marked) for e in gone]


def _rounds_to(
    goal: float, start: Tensor, original: Run, request: Request, most: int, show: Callable[[Round], None]
) -> int | None:
    federation = original.federation
    gone = _plain(original, request)
    method = method_for("retrain", original.settings)
    module = federation.fresh_model()
    if (share_right(with_params(module, start.cpu()), gone, federation) or 0.0) >= goal:
        return 0
    stream = rounds_of(
        method, engine_of(original), list(federation.clients), Plain(start.clone()), rounds=most
    )
    for state, record in stream:
        show(record)
        share = share_right(with_params(module, state.params.cpu()), gone, federation)
        if share is not None and share >= goal:
            return record.round + 1
    return None


def commonest(federation: Federation) -> float:
    """Give the accuracy of always answering the commonest label of the test set."""
    counts = torch.unique(federation.test.targets, return_counts=True)[1]
    return float(counts.max()) / len(federation.test)
