// Node's amqplib against a broker: node amqplib.js URL SCENARIO NAME. Ends with 0 if all was as it should be.
// NAME is unique to this run, for queues and exchanges.
"use strict";

const assert = require("node:assert/strict");
const { once } = require("node:events");
const amqplib = require("amqplib");

// Consume and return a function that waits for the next message; null stands for a cancel by the broker.
async function consume(channel, queue, options) {
  const arrived = [];
  const waiting = [];
  const { consumerTag } = await channel.consume(
    queue,
    (message) => (waiting.length ? waiting.shift()(message) : arrived.push(message)),
    options,
  );
  const next = () => (arrived.length ? arrived.shift() : new Promise((resolve) => waiting.push(resolve)));
  return { next, consumerTag };
}

const scenarios = {
  async round_trip(connection, name) {
    const channel = await connection.createChannel();
    const { queue, messageCount, consumerCount } = await channel.assertQueue(name, { autoDelete: true });
    assert.deepEqual([queue, messageCount, consumerCount], [name, 0, 0]);
    const body = Buffer.from(Array.from({ length: 300_000 }, (_, index) => index % 256));
    const options = {
      contentType: "application/octet-stream",
      contentEncoding: "none",
      headers: { text: "grüße", number: 42, big: 2 ** 40, nested: { list: [1, "two", true, null, 2.5] } },
      deliveryMode: 2,
      priority: 3,
      correlationId: "c",
      replyTo: "r",
      expiration: "60000",
      messageId: "m",
      timestamp: 1700000000,
      type: "t",
      userId: "guest",
      appId: "a",
    };
    channel.sendToQueue(name, body, options);
    const { next, consumerTag } = await consume(channel, name);
    const message = await next();
    assert.ok(message.content.equals(body));
    for (const [option, value] of Object.entries(options)) {
      assert.deepEqual(message.properties[option], value, option);
    }
    assert.equal(message.fields.consumerTag, consumerTag);
    assert.equal(message.fields.redelivered, false);
    channel.ack(message);
    await channel.cancel(consumerTag);
  },

  async confirms(connection, name) {
    const channel = await connection.createConfirmChannel();
    await channel.assertQueue(name, { durable: true });
    let confirmed = 0;
    for (let number = 0; number < 300; number++) {
      channel.sendToQueue(name, Buffer.from(String(number)), { persistent: true }, (error) => {
        assert.equal(error, null);
        confirmed++;
      });
    }
    await channel.waitForConfirms();
    assert.equal(confirmed, 300);
    assert.equal((await channel.checkQueue(name)).messageCount, 300);
    assert.equal((await channel.purgeQueue(name)).messageCount, 300);
    await channel.deleteQueue(name);
  },

  async a_full_queue_refuses(connection, name) {
    const channel = await connection.createConfirmChannel();
    await channel.assertQueue(name, { exclusive: true, maxLength: 1, arguments: { "x-overflow": "reject-publish" } });
    channel.sendToQueue(name, Buffer.from("first"));
    await channel.waitForConfirms();
    channel.sendToQueue(name, Buffer.from("second"));
    await assert.rejects(channel.waitForConfirms());
  },

  async topics_and_bound_exchanges(connection, name) {
    const channel = await connection.createChannel();
    await channel.assertExchange(`${name}-source`, "topic", { autoDelete: true });
    await channel.assertExchange(name, "fanout", { autoDelete: true });
    await channel.bindExchange(name, `${name}-source`, "a.#");
    const { queue } = await channel.assertQueue("", { exclusive: true });
    assert.match(queue, /^amq\.gen-/);
    await channel.bindQueue(queue, name, "");
    const { next } = await consume(channel, queue, { noAck: true });
    channel.publish(`${name}-source`, "b", Buffer.from("no"));
    channel.publish(`${name}-source`, "a.b.c", Buffer.from("yes"));
    const message = await next();
    assert.deepEqual([message.content.toString(), message.fields.routingKey], ["yes", "a.b.c"]);
    await channel.unbindQueue(queue, name, "");
  },

  async questions_and_answers(connection, name) {
    const server = await connection.createChannel();
    await server.assertQueue(name, { exclusive: true });
    await server.consume(
      name,
      ({ content, properties }) =>
        server.sendToQueue(properties.replyTo, Buffer.from(content.toString().toUpperCase()), {
          correlationId: properties.correlationId,
        }),
      { noAck: true },
    );
    const client = await connection.createChannel();
    const { next } = await consume(client, "amq.rabbitmq.reply-to", { noAck: true });
    client.sendToQueue(name, Buffer.from("question"), { replyTo: "amq.rabbitmq.reply-to", correlationId: "1" });
    const answer = await next();
    assert.deepEqual([answer.content.toString(), answer.properties.correlationId], ["QUESTION", "1"]);
  },

  async prefetch_and_giving_back(connection, name) {
    const channel = await connection.createConfirmChannel();
    await channel.assertQueue(name, { exclusive: true });
    await channel.prefetch(2);
    for (const body of ["0", "1", "2"]) channel.sendToQueue(name, Buffer.from(body));
    await channel.waitForConfirms();
    const { next } = await consume(channel, name);
    const [first, second] = [await next(), await next()];
    assert.equal((await channel.checkQueue(name)).messageCount, 1);
    channel.nack(first, false, true);
    const again = await next();
    assert.deepEqual([again.content.toString(), again.fields.redelivered], ["0", true]);
    channel.ack(again, true);
    assert.equal((await next()).content.toString(), "2");
    assert.equal(second.content.toString(), "1");
    channel.ackAll();
    await channel.recover();
    assert.equal(await channel.get(name), false);
  },

  async dead_letters(connection, name) {
    const channel = await connection.createChannel();
    await channel.assertExchange(name, "direct", { autoDelete: true });
    await channel.assertQueue(`${name}-dead`, { exclusive: true });
    await channel.bindQueue(`${name}-dead`, name, "dead");
    await channel.assertQueue(name, {
      exclusive: true,
      deadLetterExchange: name,
      deadLetterRoutingKey: "dead",
      messageTtl: 20,
    });
    const { next } = await consume(channel, `${name}-dead`, { noAck: true });
    channel.sendToQueue(name, Buffer.from("late"));
    const [death] = (await next()).properties.headers["x-death"];
    assert.deepEqual([death.queue, death.reason, death.count], [name, "expired", 1]);
  },

  async returned_messages(connection, name) {
    const channel = await connection.createConfirmChannel();
    const returned = once(channel, "return");
    channel.publish("", name, Buffer.from("lost"), { mandatory: true });
    const [message] = await returned;
    assert.deepEqual([message.fields.replyCode, message.fields.replyText], [312, "NO_ROUTE"]);
    assert.equal(message.content.toString(), "lost");
    await channel.waitForConfirms();
  },

  async errors_close_the_channel_only(connection, name) {
    const channel = await connection.createChannel();
    const failed = once(channel, "error");
    await assert.rejects(channel.checkQueue(name), /404/);
    const [error] = await failed;
    assert.equal(error.code, 404);
    const other = await connection.createChannel();
    await other.assertQueue(name, { exclusive: true });
    await other.close();
  },

  async a_deleted_queue_cancels_its_consumer(connection, name) {
    const channel = await connection.createChannel();
    await channel.assertQueue(name);
    const { next } = await consume(channel, name);
    const other = await connection.createChannel();
    await other.deleteQueue(name);
    assert.equal(await next(), null);
  },
};

async function main(url, scenario, name) {
  const connection = await amqplib.connect(url);
  await scenarios[scenario](connection, name);
  await connection.close();
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
