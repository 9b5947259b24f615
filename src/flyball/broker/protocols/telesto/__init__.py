"""Telesto's protocol, served: which packets are allowed in which state of a connection."""

from __future__ import annotations

from flyball.broker.protocols.telesto import clustering, extension, plain
from flyball.broker.protocols.telesto.session import States, Table, TelestoSession
from flyball.broker.transport.connection import Hub
from flyball.broker.wire import telesto as wire
from flyball.model import Order

__all__ = ["STATES", "new_session"]

_QUEUES: Table = {
    wire.CreateQueue: plain.create_queue,
    wire.DeleteQueue: plain.delete_queue,
    wire.GetQueueId: plain.get_queue_id,
    wire.GetQueueName: plain.get_queue_name,
    wire.GetQueues: plain.get_queues,
    wire.GetMessages: plain.get_messages,
}

_UNIDENTIFIED: Table = {
    wire.Ping: plain.ping,
    wire.RegisterClient: plain.register_client,
    wire.IdentifyClient: extension.identify_client,
}

_IDENTIFIED: Table = {
    wire.Ping: plain.ping,
    wire.DeleteClient: plain.delete_client,
    **_QUEUES,
    wire.GetActiveQueues: plain.get_active_queues,
    wire.PutMessage: plain.put_message,
    wire.ReadMessage: plain.read_message,
    wire.ReadResponse: plain.read_response,
}

_ADMINISTRATION: Table = {
    **_QUEUES,
    wire.Purge: extension.purge,
    wire.Status: extension.status,
    wire.ListClients: extension.list_clients,
    wire.RemoveClient: extension.remove_client,
    wire.Manage: extension.manage,
    wire.AskNonce: extension.ask_nonce,
    wire.Prove: extension.prove,
    wire.Place: clustering.place,
    wire.Forwarded: clustering.forwarded,
}

STATES: States = {
    # (is it wide, is it identified)
    (False, False): _UNIDENTIFIED,
    (False, True): _IDENTIFIED,
    (True, False): {
        wire.Ping: plain.ping,
        wire.RegisterClient: plain.register_client,
        wire.IdentifyClient: plain.identify_client,
        wire.Join: extension.join,
        **_ADMINISTRATION,
    },
    (True, True): {
        **_IDENTIFIED,
        **_ADMINISTRATION,
        wire.Put: extension.put,
        wire.Take: extension.take,
        wire.Peek: extension.peek,
        wire.ListMessages: extension.list_messages,
        wire.ListIds: extension.list_ids,
        wire.Remove: extension.remove,
        wire.Consume: extension.consume,
        wire.Prefetch: extension.set_prefetch,
        wire.Cancel: extension.cancel,
        wire.Settle: extension.settle,
        wire.Arrive: clustering.arrive,
        wire.Leave: clustering.leave,
        wire.Publish: clustering.publish,
        wire.Subscribe: clustering.subscribe,
    },
}


def new_session(hub: Hub, time_order: Order, frame_max: int) -> TelestoSession:
    return TelestoSession(hub, STATES, time_order, frame_max)
