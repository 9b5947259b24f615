// AMQP connections and channels, and registered clients of the research protocols.

import { del, get, has, path, session } from "../api.js";
import { ask } from "../dialog.js";
import { fill, h } from "../dom.js";
import { ago, bytesPerSecond, text } from "../format.js";
import { onlyAdministrators } from "../guard.js";
import { Table, local, serverList } from "../table.js";
import { toast } from "../toast.js";
import { actionButton, badge, card, empty, page } from "../ui.js";
import { PREFETCH, STATE, badges, number } from "./columns.js";

export const title = "Connections";

const ALL = "All client connections.";
const ONLY_OWN = "Your own connections. Seeing those of others requires the tag “monitoring”.";

function product({ client_properties: properties = {}, user_provided_name: name }) {
  return name ?? properties.connection_name ?? properties.product ?? "";
}

const isOwn = (connection) => connection.user === session.user?.name;

export function mount(root) {
  const connections = connectionTable();
  const channels = channelTable();
  const clients = has("monitoring") ? clientTable() : null;
  fill(
    root,
    page(
      title,
      { lead: has("monitoring") ? ALL : ONLY_OWN },
      card("Connections", {}, connections.element),
      card("Channels", {}, channels.element),
      clients && card("Registered clients", { note: "Telesto and ThorBangMQ" }, clients.element),
    ),
  );
  return () => {
    connections.destroy();
    channels.destroy();
    clients?.destroy();
  };
}

const traffic = (key, label) => ({
  key,
  label,
  numeric: true,
  sort: `${key}_details.rate`,
  value: (one) => bytesPerSecond(one[`${key}_details`]?.rate ?? 0),
});

function connectionTable() {
  const columns = [
    {
      key: "name",
      label: "Name",
      value: (one) => `${one.name} ${product(one)}`,
      render: (one) => [one.name, product(one) && h("div.note", {}, product(one))],
    },
    { key: "user", label: "User", value: (one) => text(one.user) },
    { key: "vhost", label: "Vhost", value: (one) => text(one.vhost) },
    {
      key: "protocol",
      label: "Protocol",
      value: (one) => `${one.protocol}${one.ssl ? " TLS" : ""}`,
      render: (one) => [one.protocol, " ", one.ssl && badge("TLS", "info")],
    },
    STATE,
    number("channels", "Channels"),
    traffic("recv_oct", "Received"),
    traffic("send_oct", "Sent"),
    { key: "connected_at", label: "Connected", value: (one) => ago(one.connected_at / 1000) },
    { key: "node", label: "Node", value: (one) => text(one.node) },
    {
      key: "close",
      label: "Action",
      sort: false,
      value: (one) => one.name,
      render: (one) => closeButton(one, () => table.reload()),
    },
  ];
  const table = new Table({
    label: "Connections",
    columns,
    key: (one) => `${one.node}/${one.name}`,
    load: serverList("/api/connections"),
    sort: "name",
    filterLabel: "Filter connections by name",
    empty: () => empty(
      "No connections",
      "Connect an AMQP 0-9-1 client to one of the addresses on the overview.",
    ),
  });
  return table;
}

function closeButton(connection, done) {
  const refused = isOwn(connection) ? null : onlyAdministrators("close connections of other users");
  const where = path`/api/connections/${connection.name}`;
  const close = async () => {
    const closed = await ask({
      title: "Close this connection?",
      text: `${connection.name} of user “${connection.user}”. Most clients reconnect by themselves.`,
      action: "Close it",
      tone: "danger",
      submit: ({ reason }) => del(where, { "X-Reason": plainText(reason) }),
      fields: [{ name: "reason", label: "Reason sent to the client", value: "closed in the console" }],
    });
    if (closed === null) return;
    toast("Connection closed.", "good");
    done();
  };
  return actionButton("Close", { refused, onclick: close });
}

// Headers cannot contain other characters.
const plainText = (reason) => reason.replace(/[^\x20-\x7e]/g, "?");

function channelTable() {
  const columns = [
    { key: "name", label: "Name" },
    { key: "user", label: "User", value: (one) => text(one.user) },
    badges("mode", "Mode", modes),
    STATE,
    number("consumer_count", "Consumers"),
    PREFETCH,
    number("messages_unacknowledged", "Unacked"),
    number("messages_unconfirmed", "Unconfirmed"),
  ];
  return new Table({
    label: "Channels",
    columns,
    key: (one) => `${one.node}/${one.name}`,
    load: serverList("/api/channels"),
    sort: "name",
    filterLabel: "Filter channels by name",
    empty: () => empty("No channels", "Channels are opened by AMQP clients."),
  });
}

const modes = (channel) => [channel.confirm && "confirms", channel.transactional && "transactional"].filter(Boolean);

function clientTable() {
  const columns = [
    { key: "name", label: "Name", value: (one) => text(one.name) },
    { key: "id", label: "Id", numeric: true },
    { key: "mode", label: "Mode" },
    {
      key: "connected",
      label: "Connected",
      value: (one) => Boolean(one.connected),
      render: (one) => (one.connected ? badge("connected", "good") : badge("away")),
    },
    {
      key: "connections",
      label: "From",
      isWide: true,
      sort: false,
      value: (one) => peers(one).join(", "),
    },
  ];
  return new Table({
    label: "Registered clients",
    columns,
    key: (one) => String(one.id),
    load: local(() => get("/api/flyball/clients"), { columns, text: (one) => `${one.name} ${one.id}` }),
    sort: "name",
    filterLabel: "Filter clients by name",
    empty: () => empty(
      "No registered clients",
      "Telesto and ThorBangMQ clients register when they first connect.",
    ),
  });
}

const peers = (client) => (client.connections ?? []).map((one) => `${one.protocol} ${one.peer}`);
