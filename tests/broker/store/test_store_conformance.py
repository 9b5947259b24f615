"""The guarantees of every store that keeps messages, and those of the one that discards them."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from decimal import Decimal

from flyball.broker.store.changes import (
    Change,
    ClientCreated,
    ClientDeleted,
    DefinitionDeleted,
    DefinitionPut,
    QueueCreated,
    QueueDeleted,
)
from flyball.broker.store.interface import Batch, IndexColumns, IndexPiece, Store
from flyball.broker.store.null import NullStore
from flyball.model import Arguments, Client, ClientMode, Definition, Message, Queue, Snapshot

ALL = 2**62

# One of everything that a field table may hold, with names that only look like something else.
ARGUMENTS = {
    "x-max-length": 2**62,
    "flag": False,
    "nothing": None,
    "share": 1e300,
    "raw": b"\0\xff",
    "since": datetime(2024, 2, 29, 12, tzinfo=UTC),
    "price": Decimal("1.10"),
    "$bytes": "not \0 bytes",
    "half \udc80": [1, {"deep": ["list", {}]}],
}


async def reopened(store: Store) -> Snapshot:
    await store.close()
    return await store.open()


async def with_queue(store: Store, queue_id: int = 1) -> Store:
    await store.open()
    await store.commit(Batch(changes=[QueueCreated(Queue(queue_id, f"queue {queue_id}"))]))
    return store


def numbered(*message_ids: int, queue_id: int = 1) -> list[Message]:
    return [Message(number, queue_id, b"body %d" % number) for number in message_ids]


async def ids_in(store: Store, queue_id: int = 1) -> list[int]:
    return [message.id for message in await store.page(queue_id, 0, 10_000)]


async def test_a_new_store_is_empty_and_counts_from_one(store: Store) -> None:
    assert await store.open() == Snapshot([], [], next_client_id=1, next_queue_id=1)
    assert await store.reserve_message_ids(10) == 1


async def test_closing_twice_and_before_opening_is_harmless(store: Store) -> None:
    await store.close()
    await store.open()
    await store.close()
    await store.close()


async def test_every_field_of_a_message_comes_back(store: Store) -> None:
    await with_queue(store)
    message = Message(
        id=2**40,
        queue_id=1,
        body=bytes(range(256)) * 100,
        sender=2**33,
        receiver=2**34,
        context=-5,
        priority=9,
        arrived_us=1_700_000_000_000_000,
        expires_us=1_800_000_000_000_000,
        properties=b"\0\xff",
        origin=b"\x01x\xff",
    )
    more = [dataclasses.replace(message, id=message.id + number) for number in range(1, 100)]
    await store.commit(Batch(appended=[message]))
    await store.commit(Batch(appended=more))
    found = await store.load([message.id, more[-1].id]) + await store.page(1, more[-2].id, 1)
    expected = [message, more[-1], more[-1]]
    assert [dataclasses.replace(one, stored=True) for one in found] == [
        dataclasses.replace(one, stored=True) for one in expected
    ]


async def test_an_empty_body_and_absent_fields_come_back_as_they_were(store: Store) -> None:
    await with_queue(store)
    await store.commit(Batch(appended=[Message(1, 1, b"")]))
    [loaded] = await store.load([1])
    assert (loaded.body, loaded.sender, loaded.receiver, loaded.context, loaded.expires_us) == (b"", *[None] * 4)


async def test_everything_that_was_declared_of_a_durable_queue_comes_back(store: Store) -> None:
    await store.open()
    queues = [
        Queue(1, "plain"),
        Queue(2, "plain", vhost="other", auto_delete=True, arguments=ARGUMENTS),
        Queue(3, "a\\0000b \0 \udcff", vhost="\udc80"),
    ]
    await store.commit(Batch([QueueCreated(queue) for queue in queues]))
    snapshot = await reopened(store)
    assert sorted((summary.queue for summary in snapshot.queues), key=lambda queue: queue.id) == queues


async def test_thousands_of_queues_and_definitions_are_declared_in_one_commit(store: Store) -> None:
    await store.open()
    changes: list[Change] = []
    for number in range(1, 3001):
        changes.append(QueueCreated(Queue(number, f"queue {number}")))
        changes.append(DefinitionPut(Definition("binding", str(number), {"number": number})))
        if number % 3 == 0:
            changes.append(QueueDeleted(number))
            changes.append(DefinitionDeleted("binding", str(number)))
    await store.commit(Batch(changes))
    snapshot = await reopened(store)
    left = {number for number in range(1, 3001) if number % 3}
    assert {summary.queue.id for summary in snapshot.queues} == left
    assert {definition.value["number"] for definition in snapshot.definitions} == left
    assert snapshot.next_queue_id == 3001


def by_place(snapshot: Snapshot) -> dict[tuple[str, str], Arguments]:
    found = {(definition.kind, definition.key): definition.value for definition in snapshot.definitions}
    assert len(found) == len(snapshot.definitions)
    return found


async def test_definitions_are_kept_by_kind_and_key_until_they_are_deleted(store: Store) -> None:
    await store.open()
    long_key = "\0" * 10_000
    await store.commit(
        Batch(
            [
                DefinitionPut(Definition("user", "ada", {"tags": ["administrator"]})),
                DefinitionPut(Definition("exchange", "ada", ARGUMENTS)),
                DefinitionPut(Definition("exchange", long_key + "1", {"number": 1})),
                DefinitionPut(Definition("exchange", long_key + "2", {"number": 2})),
                DefinitionPut(Definition("exchange", "half \udc80", {})),
            ]
        )
    )
    assert by_place(await reopened(store)) == {
        ("user", "ada"): {"tags": ["administrator"]},
        ("exchange", "ada"): ARGUMENTS,
        ("exchange", long_key + "1"): {"number": 1},
        ("exchange", long_key + "2"): {"number": 2},
        ("exchange", "half \udc80"): {},
    }
    await store.commit(
        Batch(
            [
                DefinitionDeleted("exchange", "ada"),
                DefinitionDeleted("exchange", "half \udc80"),
                DefinitionDeleted("exchange", long_key + "1"),
                DefinitionDeleted("exchange", "unknown"),
            ]
        )
    )
    assert set(by_place(await reopened(store))) == {("user", "ada"), ("exchange", long_key + "2")}


async def test_the_last_word_on_a_definition_counts(store: Store) -> None:
    await store.open()

    def put(key: str, value: int) -> Change:
        return DefinitionPut(Definition("policy", key, {"value": value}))

    changes = [
        *[put("a", 1), put("a", 2), put("b", 1), DefinitionDeleted("policy", "b")],
        *[put("c", 1), DefinitionDeleted("policy", "c"), put("c", 3), DefinitionDeleted("policy", "a"), put("a", 4)],
    ]
    for again in (False, True):
        await store.commit(Batch([*changes]), again=again)
        assert by_place(await reopened(store)) == {("policy", "a"): {"value": 4}, ("policy", "c"): {"value": 3}}


async def test_small_and_large_batches_are_stored_alike(store: Store) -> None:
    await with_queue(store)
    await store.commit(Batch(appended=numbered(1, 2, 3)))
    await store.commit(Batch(appended=numbered(*range(4, 1000)), removed=[2]))
    await store.commit(Batch(removed=[1]))
    assert await ids_in(store) == list(range(3, 1000))


async def test_removing_what_is_not_stored_is_ignored(store: Store) -> None:
    await with_queue(store)
    await store.commit(Batch(removed=[77]))
    await store.commit(Batch(appended=numbered(1), removed=[78]))
    assert await ids_in(store) == [1]


async def test_an_id_both_appended_and_removed_is_not_stored(store: Store) -> None:
    await with_queue(store)
    await store.commit(Batch(appended=numbered(1, 2), removed=[1]))
    await store.commit(Batch(appended=numbered(*range(10, 300)), removed=list(range(11, 300))))
    assert await ids_in(store) == [2, 10]


async def test_committing_again_changes_nothing(store: Store) -> None:
    await store.open()
    changes: list[Change] = [
        ClientCreated(Client(1, "ada", ClientMode.FULL)),
        QueueCreated(Queue(1, "name")),
        QueueDeleted(1),
        QueueCreated(Queue(2, "name")),
        ClientCreated(Client(2, "grace", ClientMode.READ_ONLY)),
        ClientDeleted(1),
    ]
    for messages in (numbered(1, 2, queue_id=2), numbered(*range(3, 400), queue_id=2)):
        batch = Batch([*changes], messages, [1])
        await store.commit(batch)
        await store.commit(batch, again=True)
    snapshot = await reopened(store)
    assert [client.name for client in snapshot.clients] == ["grace"]
    assert [summary.queue for summary in snapshot.queues] == [Queue(2, "name")]
    assert await ids_in(store, 2) == list(range(2, 400))


async def test_a_removed_message_can_be_appended_again(store: Store) -> None:
    await with_queue(store)
    [message] = numbered(1)
    await store.commit(Batch(appended=[message]))
    await store.commit(Batch(removed=[1]))
    await store.commit(Batch(appended=[message]), again=True)
    assert await ids_in(store) == [1]


async def test_reopening_tells_clients_queues_and_what_waits_for_whom(store: Store) -> None:
    await store.open()
    changes = [QueueCreated(Queue(1, "first")), QueueCreated(Queue(2, "zweite Schlange \N{SNOWMAN}"))]
    client = Client(7, "ada", ClientMode.READ_ONLY)
    messages = [
        Message(1, 1, b"", sender=7, receiver=8),
        Message(2, 1, b"", sender=7, receiver=8),
        Message(3, 1, b"", sender=9),
        Message(4, 1, b"", receiver=7),
    ]
    await store.commit(Batch([*changes, ClientCreated(client)], messages))
    snapshot = await reopened(store)
    assert snapshot.clients == [client]
    first, second = sorted(snapshot.queues, key=lambda summary: summary.queue.id)
    assert (first.message_count, first.last_message_id) == (4, 4)
    assert (first.addressed, first.sent) == ({8: 2, 7: 1}, {7: 2, 9: 1})
    assert (second.queue.name, second.message_count, second.addressed) == ("zweite Schlange \N{SNOWMAN}", 0, {})


async def test_numbers_of_deleted_clients_and_queues_are_not_given_out_again(store: Store) -> None:
    await store.open()
    await store.commit(Batch([ClientCreated(Client(5, "ada", ClientMode.FULL)), QueueCreated(Queue(3, "q"))]))
    await store.commit(Batch([ClientDeleted(5), QueueDeleted(3)]))
    snapshot = await reopened(store)
    assert (snapshot.next_client_id, snapshot.next_queue_id) == (6, 4)


async def test_a_deleted_queue_takes_its_messages_along(store: Store) -> None:
    await with_queue(store)
    await store.commit(Batch(appended=numbered(1, 2)))
    await store.commit(
        Batch([QueueDeleted(1), QueueCreated(Queue(2, "other"))], numbered(3) + numbered(4, queue_id=2))
    )
    assert await ids_in(store) in ([], [1, 2])  # the rest goes with delete_queue_messages, or at the next start
    snapshot = await reopened(store)
    assert [(summary.queue.id, summary.message_count) for summary in snapshot.queues] == [(2, 1)]
    await store.sweep_orphans()
    assert await ids_in(store) == []
    assert await store.sweep_orphans() == 0


async def test_messages_that_are_not_persistent_are_dropped_at_open(store: Store) -> None:
    await with_queue(store)
    await store.commit(Batch(appended=[Message(1, 1, b"", persistent=False), Message(2, 1, b"")]))
    assert (await reopened(store)).queues[0].message_count == 1
    assert await ids_in(store) == [2]


async def test_pages_follow_one_another(store: Store) -> None:
    await with_queue(store)
    await store.commit(Batch(appended=numbered(1, 3, 5, 7) + numbered(2, queue_id=2)))
    assert [message.id for message in await store.page(1, 0, 2)] == [1, 3]
    assert [message.id for message in await store.page(1, 3, 2)] == [5, 7]
    assert await store.page(1, 7, 2) == []


async def test_load_returns_what_is_stored_oldest_first(store: Store) -> None:
    await with_queue(store)
    await store.commit(Batch(appended=numbered(1, 2, 3)))
    assert [message.id for message in await store.load([3, 99, 1])] == [1, 3]


async def test_load_and_page_stop_at_a_number_of_bytes_but_return_at_least_one(store: Store) -> None:
    await with_queue(store)
    messages = [Message(number, 1, b"x" * 90, properties=b"y" * 5, origin=b"z" * 5) for number in range(1, 6)]
    await store.commit(Batch(appended=messages))
    assert [message.id for message in await store.page(1, 1, 10, 299)] == [2, 3]
    assert [message.id for message in await store.page(1, 1, 2, 500)] == [2, 3]
    assert [message.id for message in await store.page(1, 1, 10, 1)] == [2]
    assert [message.id for message in await store.load([99, 5, 1, 2, 3], 300)] == [1, 2, 5]
    assert [message.id for message in await store.load([4, 1], 1)] == [4]


async def test_an_index_of_an_empty_queue_is_one_empty_piece(store: Store) -> None:
    await with_queue(store)
    assert [piece async for piece in store.index(1, IndexColumns(), 77)] == [IndexPiece([], 77)]


async def test_an_index_groups_by_the_columns_asked_for(store: Store) -> None:
    await with_queue(store)
    messages = [
        Message(1, 1, b"", sender=1, receiver=5, context=4, priority=2),
        Message(2, 1, b"", sender=1, receiver=None, context=4, priority=2),
        Message(3, 1, b"", sender=2, receiver=5, context=None, priority=9),
        Message(4, 1, b"", sender=2, receiver=5),
        Message(5, 2, b"", sender=2, receiver=5),
    ]
    await store.commit(Batch(appended=messages))

    async def grouped(columns: IndexColumns, up_to_id: int = ALL) -> set[tuple[object, ...]]:
        pieces = [piece async for piece in store.index(1, columns, up_to_id)]
        assert pieces[-1].up_to_id == up_to_id
        found = [keys for piece in pieces for keys in piece.keys]
        return {(keys.receiver, keys.sender, keys.context, keys.priority, tuple(keys.message_ids)) for keys in found}

    assert await grouped(IndexColumns()) == {(None, None, None, None, (1, 2, 3, 4))}
    assert await grouped(IndexColumns(receiver=True)) == {
        (5, None, None, None, (1, 3, 4)),
        (None, None, None, None, (2,)),
    }
    assert await grouped(IndexColumns(sender=True), up_to_id=3) == {
        (None, 1, None, None, (1, 2)),
        (None, 2, None, None, (3,)),
    }
    assert await grouped(IndexColumns(context=True, priority=True)) == {
        (None, None, 4, 2, (1, 2)),
        (None, None, None, 9, (3,)),
        (None, None, None, 0, (4,)),
    }


async def test_first_expiry_of_each_queue_is_listed(store: Store) -> None:
    await with_queue(store)
    await store.commit(Batch(appended=[Message(1, 1, b"", expires_us=50), Message(2, 1, b"")]))
    await store.commit(Batch(appended=[Message(3, 1, b"", expires_us=40)]))
    assert await store.expiring() == [(1, 40)]


async def test_the_bytes_of_a_queue_are_those_of_its_bodies(store: Store) -> None:
    await with_queue(store)
    await store.commit(Batch(appended=[Message(1, 1, b"four", properties=b"more"), Message(2, 1, b"x" * 10_000)]))
    await store.commit(Batch(appended=[Message(3, 1, b"three"), Message(4, 2, b"other")]))
    assert await store.body_bytes(1, []) == 10_009
    assert await store.body_bytes(1, [2, 7]) == 9
    assert await store.body_bytes(99, []) == 0


async def test_a_queue_is_emptied_up_to_an_id_except_what_is_kept(store: Store) -> None:
    await with_queue(store)
    await store.commit(Batch(appended=numbered(*range(1, 5001)) + numbered(9000, queue_id=2)))
    assert await store.delete_queue_messages(1, 4999, [1, 2500]) == 4997
    assert await ids_in(store) == [1, 2500, 5000]
    assert await ids_in(store, 2) == [9000]


async def test_reserved_message_ids_are_never_given_out_again(store: Store) -> None:
    await store.open()
    assert await store.reserve_message_ids(100) == 1
    assert await store.reserve_message_ids(100) == 101
    await reopened(store)
    assert await store.reserve_message_ids(1) == 201


async def test_message_ids_that_were_not_used_go_back_at_a_clean_stop(store: Store) -> None:
    await store.open()
    await store.reserve_message_ids(100)
    await store.return_message_ids(42)
    await store.return_message_ids(7)
    assert await store.reserve_message_ids(1) == 42


async def test_the_null_store_answers_keeps_nothing_and_counts_ids() -> None:
    store: Store = NullStore()
    assert await store.open() == Snapshot()
    changes: list[Change] = [QueueCreated(Queue(1, "q")), DefinitionPut(Definition("user", "ada", {}))]
    await store.commit(Batch(changes, numbered(1)), again=True)
    assert await store.open() == Snapshot()
    assert (await store.load([1]), await store.page(1, 0, 9), await store.expiring()) == ([], [], [])
    assert [piece async for piece in store.index(1, IndexColumns(), ALL)] == [IndexPiece([], ALL)]
    assert await store.delete_queue_messages(1, ALL, []) == await store.sweep_orphans() == 0
    assert await store.reserve_message_ids(10) == 1
    await store.return_message_ids(5)
    assert await store.reserve_message_ids(10) == 5
    await store.close()
    assert (store.keeps_messages, store.pages) == (False, False)
