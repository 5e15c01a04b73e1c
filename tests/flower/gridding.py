"""A grid in one process: each message is handled at once by the client's app, or by a handler of the test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from feduhb import Federation
from feduhb.flower import client_app

LINK = 1  # the SuperLink's own node id
Handler = Callable[[Message, Context], Message | None]


def make_key() -> bytes:
    """Return a new public key in the SuperLink's format."""
    return _encode(ec.generate_private_key(ec.SECP384R1()))


def derive_key(seat: int) -> bytes:
    """Return the key of a seat; it is always the same, because batches are drawn by its id."""
    return _encode(ec.derive_private_key(seat, ec.SECP384R1()))


def _encode(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@dataclass
class Seat:
    """One node: its app, and its key and name at the SuperLink."""

    app: Handler
    config: dict[str, Any]
    key: bytes = b"random bytes, as in simulation"
    name: str = ""
    online: bool = True


UNUSED = "feduhb asks a grid for its nodes, pushes and pulls, and nothing else"


@dataclass
class Stage(Grid):
    """A grid with its nodes by id and all messages that were sent to them."""

    seats: dict[int, Seat] = field(default_factory=dict)
    sent: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)
    replies: dict[str, Message] = field(default_factory=dict)
    numbers: Iterable[int] = field(default_factory=lambda: itertools.count(1))
    before: Callable[[Message], None] = lambda message: None  # noqa: ARG005

    def __post_init__(self) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, LINK, 1

    def set_run(self, run: Run) -> None: ...

    @property
    def run(self) -> Run:
        raise AssertionError(UNUSED)

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise AssertionError(UNUSED)

    def get_node_ids(self) -> Iterable[int]:
        return [node for node, seat in self.seats.items() if seat.online]

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [
            NodeInfo(node_id=n, public_key=self.seats[n].key, name=self.seats[n].name)
            for n in self.get_node_ids()
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self._handle(message) for message in messages]  # pyright: ignore[reportReturnType] (None, as the real one)

    def _handle(self, message: Message) -> str | None:
        number = f"m{next(iter(self.numbers))}"
        self.before(message)
        node = message.metadata.dst_node_id
        if node not in self.seats:
            return None
        message.metadata.__dict__["_message_id"] = number
        told = dict(message.content["config"]) if "config" in message.content else {}
        self.sent.append((node, message.metadata.message_type, told))
        seat = self.seats[node]
        context = Context(run_id=1, node_id=node, node_config=seat.config, state=RecordDict(), run_config={})
        try:
            reply = seat.app(message, context)
        except Exception as error:
            reply = Message(Error(2, repr(error)), reply_to=message)
            reply.metadata.__dict__["_src_node_id"] = LINK
        if reply is not None:
            self.replies[number] = reply
        return number

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(number) for number in message_ids if number in self.replies]

    def send_and_receive(self, *_: Any, **__: Any) -> Iterable[Message]:
        raise AssertionError(UNUSED)

    def list_trained(self) -> set[int]:
        """Return the nodes that received a train message."""
        return {node for node, kind, _ in self.sent if kind == "train"}


def make_app(federation: Federation, **options: Any) -> ClientApp:
    """Return the ClientApp of a federation in this process; partitions are clients in the order of their names."""
    names = sorted(federation.clients)

    def load(context: Context) -> Any:
        return federation.clients[names[int(context.node_config["partition-id"])]]

    own = {name: getattr(federation, name) for name in ("model", "loss", "start", "augment")}
    return client_app(data=load, **{**own, **options})


def make_grid(
    federation: Federation, *, keyed: bool = False, apps: Mapping[str, Handler] | None = None, **options: Any
) -> Stage:
    """Return a grid of a federation's clients; ``apps`` replaces the apps of some clients."""
    app, names = make_app(federation, **options), sorted(federation.clients)
    seats: dict[int, Seat] = {}
    for i, name in enumerate(names):
        seats[100 + i] = Seat((apps or {}).get(name, app), {"partition-id": i, "num-partitions": len(names)})
        if keyed:
            seats[100 + i].key, seats[100 + i].name = derive_key(100 + i), name
    return Stage(seats)


def change_answers(app: Handler, change: Callable[[RecordDict], RecordDict | None]) -> Handler:
    """Return an app whose train answers are changed; the answer None is not sent."""

    def handle(message: Message, context: Context) -> Message | None:
        reply = app(message, context)
        if message.metadata.message_type != "train" or reply is None:
            return reply
        content = change(reply.content)
        return None if content is None else Message(content, reply_to=message)

    return handle


class Killed(BaseException):
    """The server's process ends here."""


def make_killing_grid(federation: Federation, round: int) -> Stage:
    """Return a grid whose server is killed when it asks for work in a round."""
    grid = make_grid(federation)

    def before(message: Message) -> None:
        if message.metadata.message_type == "train" and message.content["config"]["round"] == round:
            raise Killed

    grid.before = before
    return grid
