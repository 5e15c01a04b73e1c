"""The kernels on a GPU equal plain torch in float64, the loop, and themselves. Skipped without a GPU."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import feduhb
from federations import ragged, tensors
from feduhb.core.flat import flatten
from feduhb.data.federation import Examples
from feduhb.engines import Loop, Stacked
from feduhb.engines.stacked.fused import make_fused_layers
from feduhb.engines.stacked.layers import make_layers, trace
from feduhb.engines.stacked.networks import LayeredNetwork
from feduhb.engines.triton import HAS_TRITON, convolution
from feduhb.engines.triton.convolution import Geometry
from feduhb.errors import AnswerError

pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() and HAS_TRITON), reason="needs a GPU and Triton"
)
TOLERANCE = {"float32": 2e-5, "tf32": 5e-3, "bf16": 5e-2}  # of a layer's answers, relative
GEOMETRIES = [
    Geometry(64, 28, 28, 1, 32, 5, 5, pool=2),
    Geometry(64, 12, 12, 32, 64, 5, 5, pool=2),
    Geometry(64, 32, 32, 3, 32, 5, 5, pool=2),
    Geometry(7, 9, 8, 3, 5, 3, 3, pad=1, pool=2),
    Geometry(20, 8, 8, 16, 20, 5, 3, pad=1, relu=False),
    Geometry(1, 6, 7, 40, 70, 3, 3, pad=2),
    Geometry(33, 11, 5, 100, 33, 1, 1, pool=2),
    Geometry(100, 10, 10, 8, 12, 2, 2, pool=2, relu=False),
]


def relative(found, expected):
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize("g", GEOMETRIES, ids=str)
def test_convolutions_equal_torchs_in_float64(g, precision):
    draw = torch.Generator("cuda").manual_seed(0)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    dot = "tf32x3" if precision == "float32" else "tf32"

    def some(*shape):
        return torch.randn(*shape, device="cuda", generator=draw).to(dtype)

    x, w = some(3, g.batch, g.height, g.width, g.cin), some(3, g.cout, g.depth) / g.depth**0.5
    b = some(3, g.cout)
    y, which, last = convolution.forward(x, w, b.float(), g, dot, batch_last=True)
    assert last is not None
    assert torch.equal(last.movedim(-1, 1), y)
    xs = x.double().permute(0, 1, 4, 2, 3).requires_grad_()
    window = (3, g.cout, g.kh, g.kw, g.cin)
    ws = w.double().view(window).permute(0, 1, 4, 2, 3).requires_grad_()
    bs = b.double().requires_grad_()
    out = torch.stack([functional.conv2d(xs[c], ws[c], bs[c], padding=g.pad) for c in range(3)])
    out = out.relu() if g.relu else out
    out = functional.max_pool2d(out.flatten(0, 1), 2).unflatten(0, (3, -1)) if g.pool == 2 else out
    assert relative(y.permute(0, 1, 4, 2, 3), out.detach()) < TOLERANCE[precision]
    # A maximum within rounding may come from another place: compare gradients where torch's places are taken.
    dp = some(*which.shape)
    if precision == "float32":
        gradients = torch.autograd.grad(out, [xs, ws, bs], dp.permute(0, 4, 3, 1, 2).double())
        turned = w.view(3, g.cout, g.kh * g.kw, g.cin).permute(0, 2, 3, 1).contiguous()
        dx = convolution.input_gradient(convolution.unpool(dp, which, g), turned, g, dot)
        dw, db = convolution.filter_gradients(x.permute(0, 2, 3, 4, 1).contiguous(), dp, which, g, dot)
        assert relative(dx.permute(0, 4, 3, 1, 2), gradients[0]) < 1e-3
        assert relative(dw.sum(0).view(window).permute(0, 1, 4, 2, 3), gradients[1]) < 1e-3
        assert relative(db.sum(0), gradients[2]) < 1e-3


torch.manual_seed(0)  # of the networks' weights
NETWORKS = {
    "paper": (1, nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(54, 8), nn.ReLU(), nn.Linear(8, 3))),
    "norms": (3, nn.Sequential(
        nn.Conv2d(3, 10, 3, padding=1), nn.ReLU(), nn.Conv2d(10, 5, 3, bias=False), nn.MaxPool2d(2),
        nn.GroupNorm(5, 5), nn.Flatten(), nn.LayerNorm(125), nn.Linear(125, 3))),
    "strides": (12, nn.Sequential(
        nn.Conv2d(12, 10, 3, padding=1), nn.AvgPool2d(2), nn.Conv2d(10, 6, 3, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(24, 3, bias=False))),
    "mlp": (2, nn.Sequential(nn.Flatten(), nn.Linear(288, 70), nn.ReLU(), nn.Linear(70, 3))),
}  # fmt: skip


@pytest.mark.parametrize("l2", [0.0, 0.1])
@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize("name", NETWORKS)
def test_fused_layers_step_like_plain_ones_and_leave_finished_clients_alone(name, precision, l2):
    channels, net = NETWORKS[name]
    net, device = copy.deepcopy(net).cuda(), torch.device("cuda")
    draw = torch.Generator("cuda").manual_seed(1)
    x = torch.randn(3, 6, channels, 12, 12, device=device, generator=draw)
    y = torch.randint(0, 3, (3, 6), device=device, generator=draw)
    share = torch.full((3, 6), 1 / 6, device=device)
    share[1, :4], share[1, 4:], share[2] = 0.25, 0, 0
    on = torch.tensor([1.0, 1.0, 0.0], device=device)
    local, start = feduhb.Local(lr=0.1, l2=l2), flatten(net)
    exact = copy.deepcopy(net).double()
    plain = LayeredNetwork(exact, make_layers(trace(exact), 4, device), local)
    fused = LayeredNetwork(net, make_fused_layers(trace(net), 4, device, precision, x[0]), local)
    plain.begin(start.double())
    fused.begin(start)
    for _ in range(2):
        plain.step(x.double(), y, share.double(), on.double())
        fused.step(x, y, share, on)
    found, expected = fused.end(), plain.end()
    moved = (expected - start)[:2]
    tolerance = {"float32": 1e-3, "tf32": 6e-2, "bf16": 3e-1}[
        precision
    ]  # a few units: one ReLU more or less shows
    assert (found - expected)[:2].norm() < tolerance * moved.norm()
    assert torch.equal(found[2], start)
    assert torch.equal(found[3], start)


def train_all(engine, federation, epochs, round=3):
    start = flatten(ragged(dtype=torch.float32).fresh_model())  # a float64 module would draw other numbers
    work = feduhb.Work(start.to(next(federation.fresh_model().parameters()).dtype), epochs)
    return torch.cat([block.values for block in engine.train(work, tuple(federation.clients), round)])


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("epochs", [0, 1, 3])
@pytest.mark.parametrize("block", [2, None])
def test_ragged_federations_train_as_on_the_loop(epochs, mapped, block):
    local = feduhb.Local(batch_size=4, lr=0.1, l2=0.05)
    exact = train_all(Loop(ragged(), local), ragged(), epochs)
    single = ragged(dtype=torch.float32)
    found = train_all(Stacked(single, local, mapped=mapped, block=block), single, epochs)
    assert relative(found, exact) < 1e-3
    double = ragged()
    torch.testing.assert_close(
        train_all(Stacked(double, local, mapped=mapped, block=block), double, epochs),
        exact,
        rtol=0,
        atol=1e-10,
    )


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_two_runs_give_the_same_bits_and_rounds_do_not_leak_into_each_other(precision):
    federation = ragged({f"c{i}": 10 + 37 * i for i in range(9)}, dtype=torch.float32)
    local = feduhb.Local(batch_size=16, lr=0.1)
    first = Stacked(federation, local, precision=precision)
    train_all(first, federation, 2, round=7)
    train_all(first, federation, 5, round=8)
    assert torch.equal(
        train_all(first, federation, 2),
        train_all(Stacked(federation, local, precision=precision), federation, 2),
    )


def test_answers_come_to_where_the_parameters_are():
    federation = ragged(dtype=torch.float32)
    start = flatten(federation.fresh_model())
    for device in ("cpu", "cuda"):
        block = next(Stacked(federation).train(feduhb.Work(start.to(device), 1), ("cat", "ant"), 0))
        assert block.values.device.type == device
        assert block.clients == ("cat", "ant")


def test_images_that_lie_channels_last_train_as_on_the_loop():
    """The kernel that gathers batches reads examples row by row."""
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(40, 3, 8, 8, generator=draw).contiguous(memory_format=torch.channels_last)
    y, parts = torch.arange(80)[::2] % 3, torch.arange(40).split([9, 31])
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    clients = {f"c{i}": Examples.of(x, y, rows) for i, rows in enumerate(parts)}
    federation = feduhb.Federation(clients, (x, y), model)
    work, local = feduhb.Work(flatten(federation.fresh_model()), 1), feduhb.Local(batch_size=4, lr=0.1)
    slow, fast = (
        torch.cat([block.values for block in engine.train(work, tuple(clients), 0)])
        for engine in (Loop(federation, local), Stacked(federation, local))
    )
    assert relative(fast, slow.double()) < 1e-3


def test_a_label_that_is_not_a_class_is_refused_before_a_kernel_sees_it():
    x, y = tensors("cat", 6, dtype=torch.float32)
    federation = ragged({"ant": 3}, dtype=torch.float32, cat=(x, y + 7))
    with pytest.raises(
        AnswerError, match=r"client cat could not train in round 3 \(Target \d is out of bounds\.\)"
    ):
        train_all(Stacked(federation), federation, 1)
