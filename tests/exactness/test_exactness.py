"""Exact means exact: nothing of the forgotten data reaches the unlearned weights, to the last bit.

(a) Replace the forgotten data by noise, of the same or another size, train and unlearn again: same weights.
(b) Build a federation that never held it and train that by the same method: same weights.
"""

import functools

import pytest
import torch

import feduhb
from federations import SIZES, ragged, tensors

LEAVERS = ("bee", "elk")
ROUNDS = 3  # momentum counts from the second
ROWS = {"dog": (0, 3, 4, 23), "ant": (0,)}  # the only row of ant: it leaves whole
ENGINES = {"loop": feduhb.Loop, "pool": feduhb.Pool}
if torch.cuda.is_available():
    ENGINES["loop on a GPU"] = functools.partial(feduhb.Loop, device="cuda")
METHODS = {
    "feduhb": feduhb.FedUHB(epochs=2, momentum=0.9),
    "feduhb gradient": feduhb.FedUHB(epochs=0, step_size=0.3),
    "feduhb median": feduhb.FedUHB(epochs=1, aggregate=feduhb.median),
    "retrain": feduhb.Retrain(epochs=2),
    "nesterov": feduhb.Nesterov(epochs=2),
    "fedadam": feduhb.FedAdam(epochs=2),
    "fedyogi": feduhb.FedYogi(epochs=2),
    "fednadam": feduhb.FedNadam(epochs=2),
    "fedexp": feduhb.FedExP(epochs=2),
    "rapidretrain": feduhb.RapidRetrain(lr=0.01, epochs=1),
}
every_way = pytest.mark.parametrize(  # every method by every engine, with sampling and without it
    ("engine", "method", "sampled"),
    [
        (engine, method, (None, 2)[(place + number) % 2])
        for place, engine in enumerate(ENGINES)
        for number, method in enumerate(METHODS)
    ],
)


def noise(size):
    draw = torch.Generator().manual_seed(99)
    return torch.randn(size, 1, 12, 12, generator=draw, dtype=torch.float64) * 50, torch.randint(
        0, 3, (size,), generator=draw
    )


def unlearned(federation, forget, engine, method, sampled):
    """Train with everybody, then unlearn."""
    trained = feduhb.train(
        federation, 2, epochs=1, batch_size=6, lr=0.05, clients_per_round=sampled, engine=ENGINES[engine]
    )
    return feduhb.unlearn(trained, forget, method=METHODS[method], rounds=ROUNDS)


def never_there(federation, engine, method, sampled):
    """Run the method on a federation that never held what was forgotten, by the bare loop."""
    from feduhb.core.flat import flatten
    from feduhb.core.seeds import sample_clients
    from feduhb.runs.loop import run

    made = ENGINES[engine](federation, feduhb.Local(batch_size=6, lr=0.05))
    clients = list(federation.clients)
    taking_part = (
        clients if sampled is None else lambda round: sample_clients(federation.seed, round, clients, sampled)
    )
    rule = METHODS[method]
    stop = feduhb.dynamic_stop(momentum=rule.momentum) if isinstance(rule, feduhb.FedUHB) else feduhb.never
    start = rule.init(flatten(federation.fresh_model()).to(made.about["device"]))  # the server's place too
    *_, (state, _) = run(rule, made, taking_part, start, rounds=ROUNDS, stop=stop)
    return state.params.cpu()


@every_way
def test_whole_clients(engine, method, sampled):
    real = unlearned(ragged(), LEAVERS, engine, method, sampled)
    same_size = {client: noise(SIZES[client]) for client in LEAVERS}
    other_size = {"bee": noise(40), "elk": noise(2)}
    for changed in (same_size, other_size):
        again = unlearned(ragged(**changed), LEAVERS, engine, method, sampled)
        assert torch.equal(real.params, again.params)
        assert [r.asked for r in real.rounds] == [r.asked for r in again.rounds]
    remaining = ragged({client: size for client, size in SIZES.items() if client not in LEAVERS})
    assert torch.equal(real.params, never_there(remaining, engine, method, sampled))
    assert all(set(LEAVERS).isdisjoint(r.asked) for r in real.rounds)


@every_way
def test_rows_of_clients(engine, method, sampled):
    real = unlearned(ragged(), ROWS, engine, method, sampled)
    x, y = (part.clone() for part in tensors("dog", SIZES["dog"]))
    rows = list(ROWS["dog"])
    x[rows], y[rows] = noise(len(rows))
    noisy = unlearned(ragged(dog=(x, y), ant=noise(1)), ROWS, engine, method, sampled)
    assert torch.equal(real.params, noisy.params)
    more = torch.cat([x, noise(3)[0]]), torch.cat([y, noise(3)[1]])
    longer = unlearned(ragged(dog=more), {**ROWS, "dog": (*rows, 24, 25, 26)}, engine, method, sampled)
    assert torch.equal(real.params, longer.params)
    kept = [row for row in range(SIZES["dog"]) if row not in rows]
    short = ragged(
        {client: size for client, size in SIZES.items() if client != "ant"}, dog=(x[kept], y[kept])
    )
    assert torch.equal(real.params, never_there(short, engine, method, sampled))


@every_way
def test_a_class(engine, method, sampled):
    real = unlearned(ragged(), "class:2", engine, method, sampled)
    data = {client: tensors(client, size) for client, size in SIZES.items()}
    noisy = {}
    for client, (x, y) in data.items():
        scrambled = torch.where((y == 2).view(-1, 1, 1, 1), 7.0, x)
        noisy[client] = (scrambled, y)
    again = unlearned(ragged(**noisy), "class:2", engine, method, sampled)
    assert torch.equal(real.params, again.params)
    left = {client: (x[y != 2], y[y != 2]) for client, (x, y) in data.items() if (y != 2).any()}
    never = ragged({}, **left)
    assert torch.equal(real.params, never_there(never, engine, method, sampled))


def test_the_check_can_fail():
    """A method that starts from the trained model instead of a fresh one is caught."""
    federation, noisy = ragged(), ragged(bee=noise(5), elk=noise(8))
    found = []
    for each in (federation, noisy):
        trained = feduhb.train(each, 3, epochs=1, batch_size=6, lr=0.05)
        remaining = each.without(LEAVERS)
        rule = feduhb.FedUHB(epochs=1)
        from feduhb.runs.loop import run

        *_, (state, _) = run(
            rule, feduhb.Loop(remaining), list(remaining.clients), rule.init(trained.params), rounds=2
        )
        found.append(state.params)
    assert not torch.equal(*found)


@pytest.mark.parametrize("method", METHODS)
def test_forgetting_in_two_steps_equals_forgetting_at_once(method):
    trained, how = feduhb.train(ragged(), 2, epochs=1, batch_size=6, lr=0.05), {"method": METHODS[method]}
    request = feduhb.Request(clients=("bee",), rows={"dog": (0, 3)})
    once = feduhb.unlearn(trained, request, rounds=3, **how)
    first = feduhb.unlearn(trained, {"dog": (0,)}, rounds=3, **how)
    twice = feduhb.unlearn(feduhb.unlearn(first, ["bee"], rounds=3, **how), {"dog": (3,)}, rounds=3, **how)
    assert torch.equal(once.params, twice.params)
    assert str(once.forgot) == str(twice.forgot) == "bee,dog:0+3"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist-5k", "digits"])
def test_inputs_are_scaled_by_constants_so_no_statistic_of_forgotten_data_survives(name):
    """Same as for every data set: pixels land exactly on the grid 2 k / white - 1."""
    federation = feduhb.load(name, clients=5)
    white = {"mnist-5k": 255, "digits": 16}[name]
    steps = (federation.test.x.double() + 1) * white / 2
    assert float((steps - steps.round()).abs().max()) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "pool"])
def test_the_papers_cnn_in_float32(engine):
    """The model and the precision that people use, on real images, leavers replaced by noise and left out."""
    federation = feduhb.load("mnist-5k", clients=5, per_client=40, seed=2)
    x, y = federation.clients["c01"].all()
    noisy = federation.replace(clients={**federation.clients, "c01": (torch.randn_like(x) * 9, y.flip(0))})
    never = federation.replace(
        clients={c: e for c, e in federation.clients.items() if c != "c01"}, held_out={}
    )
    found = []
    for each in (federation, noisy):
        trained = feduhb.train(each, 1, epochs=1, lr=0.05, engine=engine)
        found.append(feduhb.unlearn(trained, ["c01"], method="retrain", rounds=2).params)
    found.append(feduhb.train(never, 2, epochs=1, lr=0.05, engine=engine).params)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_shuffles_keyed_by_position_are_caught(monkeypatch):
    """The leak that others made: a client's shuffle depends on its place in the list, so it changes when somebody leaves."""
    import feduhb.engines.batches as batches
    from feduhb.engines.batches import draw_order

    def by_position(federation, local):
        places = {client: str(i) for i, client in enumerate(sorted(federation.clients))}
        monkeypatch.setattr(
            batches,
            "draw_order",
            lambda n, seed, client, *at: draw_order(n, seed, places[client], *at),
        )
        return feduhb.Loop(federation, local)

    trained = feduhb.train(ragged(), 1, epochs=1, batch_size=6, lr=0.05)
    everybody = trained.federation
    real = feduhb.unlearn(
        trained, LEAVERS, method="retrain", rounds=2, engine=lambda _, local: by_position(everybody, local)
    )
    remaining = ragged({client: size for client, size in SIZES.items() if client not in LEAVERS})
    never = feduhb.train(remaining, 2, epochs=1, batch_size=6, lr=0.05, engine=by_position)
    assert not torch.equal(real.params, never.params)
