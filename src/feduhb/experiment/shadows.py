"""Shadow federations for LiRA: the same training with half of the clients, many times, each time another half."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from feduhb.core.seeds import generator, seed_for
from feduhb.core.types import ClientId
from feduhb.data.federation import Examples, Federation
from feduhb.engines.pool import Pool, cores
from feduhb.errors import ConfigError, DataError
from feduhb.evaluate.lira import likelihood_ratios, self_test
from feduhb.evaluate.membership import confidences
from feduhb.evaluate.roc import Scores
from feduhb.experiment.bench import Bench
from feduhb.experiment.plans import only_weights
from feduhb.experiment.runs import EngineMaker, Run
from feduhb.experiment.workers import spread
from feduhb.records import write_atomically

Deals = Sequence[Mapping[ClientId, Tensor]]
FEWEST = 4  # shadows: with less there is no spread to speak of


@dataclass(frozen=True, slots=True)
class Candidates:
    """The examples that are asked about, by client: members first, then others that the real training never saw."""

    members: Mapping[ClientId, Examples]
    others: Mapping[ClientId, Examples]

    def all(self, client: ClientId) -> tuple[Tensor, Tensor]:
        """Gather a client's examples, members in front."""
        both = (self.members[client].all(), self.others[client].all())
        return torch.cat([x for x, _ in both]), torch.cat([y for _, y in both])

    def marked(self, client: ClientId) -> Tensor:
        """Mark a client's canaries [n]."""
        none = [torch.zeros(len(e), dtype=torch.bool) for e in (self.members[client], self.others[client])]
        given = (self.members[client].marked, self.others[client].marked)
        return torch.cat([n if g is None else g for n, g in zip(none, given, strict=True)])


@dataclass(frozen=True, slots=True)
class Shadows:
    """What each shadow model says of each candidate, and whether it was trained on it."""

    candidates: Candidates
    said: Mapping[ClientId, Tensor]  # [K, n] logit-scaled confidence
    inside: Mapping[ClientId, Tensor]  # [K, n] bool

    def attack(self, target: Mapping[ClientId, Tensor], *, canaries: bool = False) -> list[Scores]:
        """Attack a model by what it says [n] of every client's candidates; all of them, or the canaries alone.

        Clients of whom nothing was ever inside are left out, and those without members or others.
        """
        found: list[Scores] = []
        for client, said in self.said.items():
            chosen = self._chosen(client, canaries)
            first = int(chosen[: len(self.candidates.members[client])].sum())
            if not 0 < first < int(chosen.sum()) or not self.inside[client][:, chosen].any():
                continue
            ratios = likelihood_ratios(
                target[client][chosen], said[:, chosen], self.inside[client][:, chosen]
            )
            found.append(Scores(ratios[:first], ratios[first:]))
        return found

    def test(self, *, canaries: bool = False) -> list[Scores]:
        """Attack each shadow with the others, where the truth is known."""
        found: list[Scores] = []
        for client, said in self.said.items():
            chosen = self._chosen(client, canaries)
            with contextlib.suppress(DataError):  # without one of its shadows nothing of the client is inside
                pairs = self_test(said[:, chosen], self.inside[client][:, chosen])
                found += [Scores(*pair) for pair in pairs if len(pair[0]) and len(pair[1])]
        return found

    def _chosen(self, client: ClientId, canaries: bool) -> Tensor:
        marked = self.candidates.marked(client)
        return marked if canaries else torch.ones_like(marked)


def shadows(
    bench: Bench, federation: Federation, candidates: Candidates, like: Run, name: str, count: int
) -> Shadows:
    """Train ``count`` shadow federations by a run's method, and ask each about every candidate.

    Half of the clients take part in each, and the other half in the next. A leaver that takes part trains on as
    many of its candidates as it really trained on, dealt anew each time: members and others are treated alike.
    What a shadow said is written down at once; the shadow itself, trained on data to be forgotten, never is.
    On a CPU as many shadows as there are cores train at once, each on a core of its own.
    """
    if count < FEWEST or count % 2:
        raise ConfigError(
            f"{count} shadows are asked for; give an even number of {FEWEST} or more, such as 16"
        )
    if len(federation.clients) < 2:
        raise ConfigError(
            "shadow federations hold half of the clients, and there is only one; audit without shadows"
        )
    deals = [dealt(federation, candidates, shadow) for shadow in range(count)]
    workers = cores() if _one_thread(bench.engine) else 1
    for _ in spread(train_and_ask, _jobs(bench, federation, candidates, like, name, deals), workers):
        pass
    files = [bench.folder / f"{name}-{shadow:02d}.json" for shadow in range(count)]
    told = [json.loads(file.read_text()) for file in files]
    clients = list(candidates.members)
    return Shadows(
        candidates,
        {c: torch.stack([torch.tensor(one[c], dtype=torch.float64) for one in told]) for c in clients},
        {c: torch.stack([deal[c] for deal in deals]) for c in clients},
    )


def taking_part(federation: Federation, shadow: int) -> list[ClientId]:
    """Give a shadow's half of the clients; shadows 2 j and 2 j + 1 share them out."""
    clients = sorted(federation.clients)
    order = torch.randperm(
        len(clients), generator=generator(federation.seed, "shadows", shadow // 2)
    ).tolist()
    half = len(clients) // 2
    return sorted(clients[i] for i in (order[half:] if shadow % 2 else order[:half]))


def dealt(federation: Federation, candidates: Candidates, shadow: int) -> dict[ClientId, Tensor]:
    """Mark, for every client, the candidates [n] that a shadow trains on."""
    present, found = taking_part(federation, shadow), {}
    for client, members in candidates.members.items():
        inside = torch.zeros(len(members) + len(candidates.others[client]), dtype=torch.bool)
        if client in present:
            draw = generator(federation.seed, "deal", shadow, client)
            inside[torch.randperm(len(inside), generator=draw)[: len(members)]] = True
        found[client] = inside
    return found


def shadow_federation(
    federation: Federation, candidates: Candidates, shadow: int, deal: Mapping[ClientId, Tensor]
) -> Federation:
    """Give the federation that a shadow trains in."""

    def examples(client: ClientId) -> Examples | tuple[Tensor, Tensor]:
        own = federation.clients[client]
        if client not in candidates.members:
            return own
        kept = own.where(~torch.isin(own.keys, candidates.members[client].keys))
        parts = [kept.all(), tuple(part[deal[client]] for part in candidates.all(client))]
        return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])

    return federation.replace(
        clients={client: examples(client) for client in taking_part(federation, shadow)},
        held_out={},
        seed=seed_for(federation.seed, "shadow", shadow),
        about=None,
    )


def asked(run: Run, candidates: Candidates) -> dict[ClientId, Tensor]:
    """Give what a model says of every client's candidates [n]."""
    model, loss = run.model(), run.federation.loss
    return {c: confidences(model, Examples.of(*candidates.all(c)), loss) for c in candidates.members}


@dataclass(frozen=True, slots=True)
class Job:
    """One shadow to train and to ask: whole, so that it can be done in another process."""

    plan: Run
    candidates: Candidates
    file: Path  # where it is written down what the shadow said


def _jobs(
    bench: Bench, federation: Federation, candidates: Candidates, like: Run, name: str, deals: Deals
) -> Iterator[Job]:
    """Plan the shadows that have not spoken yet."""
    alone = _one_thread(bench.engine)
    for shadow, deal in enumerate(deals):
        file = bench.folder / f"{name}-{shadow:02d}.json"
        what = f"{name.rpartition('-')[0]} {shadow + 1} of {len(deals)}"
        bench.step(what + (": already there" if file.exists() else ""), 1)
        if not file.exists():
            inner = shadow_federation(federation, candidates, shadow, deal)
            plan = bench.planned(inner, like.method, file.stem, like)
            plan = replace(plan, folder=None, engine=alone or bench.engine, block=None)
            yield Job(plan, candidates, file)


def train_and_ask(job: Job) -> None:
    """Train a shadow and write down what it says. It is never on disk itself: what a crash costs is one shadow."""
    run = only_weights(job.plan)
    said = {client: values.tolist() for client, values in asked(run, job.candidates).items()}
    write_atomically(job.file, json.dumps(said).encode())


def _one_thread(engine: str | EngineMaker) -> EngineMaker | None:
    """Give the engine to use where several shadows train at once; None where they shall not: on a GPU, or on an engine of the user's own."""
    if engine not in {"auto", "pool"} or torch.cuda.is_available():
        return None
    return partial(Pool, threads=1)
