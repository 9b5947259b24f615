"""The ready messages of a queue, read as the HTTP API reads them."""

from __future__ import annotations

from flyball.broker.core.pending import result
from flyball.broker.node.node import Node
from flyball.model import Message
from tests.nodes import RunningNode


def browse(node: RunningNode, after_id: int, limit: int, queue: str = "queue") -> list[Message]:
    """Return some messages of a queue of the node with a larger id, oldest first."""

    async def read(node: Node) -> list[Message]:
        broker = node.hub.broker
        state = broker.engine.find_queue(queue)
        assert state is not None
        queue_id = state.queue.id
        return await result(lambda done: broker.browse(queue_id, after_id, limit, done))

    return node.run(read)
