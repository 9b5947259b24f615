// The domain: nodes, clustered queues, members, sessions and the decision log.

import { toLoop } from "../addresses.js";
import { get } from "../api.js";
import { every, fill, h } from "../dom.js";
import { count, digits, percent, perSecond, plural, seconds } from "../format.js";
import { Gallery } from "../gallery.js";
import { forMonitors } from "../guard.js";
import { subscribe } from "../live.js";
import { look } from "../looking.js";
import { Table, local } from "../table.js";
import { actionButton, badge, barMeter, card, empty, facts, notice, page, slot, tile, tiles } from "../ui.js";
import { number } from "./columns.js";
import * as actions from "./domain-actions.js";
import { Timeline } from "./timeline.js";

export const title = "Domain";

const LEAD = "Nodes that share one registry, their clustered queues, and the decisions of their manager.";
const DECISIONS_MS = 2000;
const ALONE = [
  "This is the only node. Nodes that share one PostgreSQL form a domain: start each with the same ",
  "--store postgresql://…, which “flyball store” can provide.",
].join("");

export const mount = forMonitors(title, mountDomain);

/** A node without a domain reports only itself. */
const whole = (tree) => ({ clusters: [], topics: [], factories: [], provisioners: [], ...tree });
const nameOf = ({ vhost, name }) => (vhost === "/" ? name : `${name} in ${vhost}`);
const keyOf = ({ vhost, name }) => JSON.stringify([vhost, name]);
const loopName = ({ vhost, name }) => (vhost === "/" ? `domain.${name}` : `domain.${vhost}/${name}`);

async function mountDomain(root) {
  let tree = whole(await get("/api/flyball/domain"));
  const refresh = async () => show(await get("/api/flyball/domain"));
  const now = () => tree;
  const numbers = {
    leader: tile("Leader"),
    nodes: tile("Nodes"),
    clusters: tile("Clustered queues"),
    sessions: tile("Sessions"),
  };
  const nodes = nodeTable(now, refresh);
  const sessions = sessionTable();
  const clusters = clusterGallery(now, refresh);
  const timeline = new Timeline();
  const [others, remarks] = [slot(""), slot("")];
  fill(
    root,
    page(
      title,
      { lead: LEAD, actions: headActions(now, refresh) },
      remarks.element,
      tiles(...Object.values(numbers)),
      h("h2", {}, "Clustered queues"),
      clusters.element,
      card("Decision log", { note: "decisions of the manager, newest first" }, timeline.element),
      card("Nodes", {}, nodes.element),
      card("Sessions", { note: "clients of clustered queues, with their members" }, sessions.element),
      others.element,
    ),
  );
  function show(found) {
    tree = whole(found);
    remarks.show(tree.nodes.length === 1 && notice(ALONE, "info"));
    showNumbers(numbers, tree);
    clusters.show(tree.clusters);
    nodes.reload();
    others.show(othersCard(tree));
  }
  show(tree);
  const unsubscribe = subscribe(["domain"], ({ domain }) => {
    if (domain) show(domain);
  });
  const stop = every(DECISIONS_MS, () => look(() => fetchDecisions(timeline), (error) => timeline.fail(error)));
  return () => {
    unsubscribe();
    stop();
    for (const part of [nodes, sessions, clusters]) part.destroy();
  };
}

async function fetchDecisions(timeline) {
  const { term, last } = timeline;
  timeline.take(await get(`/api/flyball/domain/decisions?${new URLSearchParams({ since: last, term })}`));
}

function headActions(now, refresh) {
  const { refused } = actions;
  return [
    actionButton("Rebalance", { refused: refused(), onclick: () => actions.rebalance(refresh) }),
    actionButton("Add a node", { refused: refused(), onclick: () => actions.addNode(now(), refresh) }),
    actionButton(
      "New clustered queue",
      { tone: "primary", refused: refused(), onclick: () => actions.createCluster(now(), refresh) },
    ),
  ];
}

function showNumbers(numbers, { leader, nodes, clusters }) {
  const up = nodes.filter((node) => node.state === "up").length;
  const sum = (what) => clusters.reduce((total, cluster) => total + cluster[what], 0);
  const members = clusters.flatMap((cluster) => cluster.members).length;
  numbers.leader.set(leader ?? "none yet", { tone: leader ? "" : "warn", more: "makes the decisions" });
  numbers.nodes.set(count(nodes.length), { tone: up < nodes.length ? "warn" : "", more: `${count(up)} up` });
  numbers.clusters.set(count(clusters.length), { more: plural(members, "member") });
  numbers.sessions.set(
    count(sum("producers") + sum("consumers")),
    { more: `${plural(sum("producers"), "producer")}, ${plural(sum("consumers"), "consumer")}` },
  );
}

// Nodes

const NODE_TONES = { up: "good", leaving: "warn", dead: "bad" };

function nodeTable(now, refresh) {
  const columns = [
    {
      key: "name",
      label: "Name",
      value: (node) => `${node.name} ${now().leader}`,
      render: (node) => [node.name, " ", node.name === now().leader && badge("leader", "info")],
    },
    { key: "state", label: "State", render: (node) => badge(node.state, NODE_TONES[node.state]) },
    { key: "epoch", label: "Epoch", numeric: true },
    {
      key: "lease_left_s",
      label: "Lease",
      numeric: true,
      title: "Remaining time; a node without a lease stops serving clients",
      value: (node) => leaseText(node.lease_left_s),
    },
    { key: "provisioner", label: "Started", value: startedText },
    {
      key: "addresses",
      label: "Listens on",
      sort: false,
      value: (node) => addressesOf(node).join(),
      render: (node) => addressesOf(node).map((one) => h("div", {}, one)),
    },
    {
      key: "queues",
      label: "Queues",
      numeric: true,
      title: "Without members of clustered queues",
      sort: false,
      value: (node) => count(node.queues?.length),
    },
    {
      key: "remove",
      label: "Action",
      sort: false,
      value: (node) => node.state,
      render: (node) => removeNodeButton(node, refresh),
    },
  ];
  return new Table({
    label: "Nodes",
    columns,
    key: (node) => node.name,
    load: local(() => now().nodes, { columns, text: (node) => node.name }),
    sort: "name",
    refreshMs: null,
    empty: () => empty("No nodes", "The registry does not answer."),
  });
}

const addressesOf = (node) => Object.entries(node.addresses).map(([protocol, address]) => `${protocol} ${address}`);

function leaseText(left) {
  if (left === null || left === undefined) return "none";
  return left > 0 ? seconds(left) : "expired";
}

function startedText({ provisioner, managed }) {
  if (!provisioner) return "by hand";
  return managed ? `by ${provisioner}, managed` : `by ${provisioner}`;
}

function removeNodeButton(node, refresh) {
  const label = node.state === "dead" ? "Remove dead" : "Remove";
  return actionButton(label, { refused: actions.refused(), onclick: () => actions.removeNode(node, refresh) });
}

// Clustered queues

function clusterGallery(now, refresh) {
  return new Gallery({
    label: "Clustered queues",
    noun: "clustered queue",
    key: keyOf,
    text: nameOf,
    make: (cluster) => clusterCard(cluster, now, refresh),
    empty: () => card(
      null,
      {},
      empty(
        "No clustered queues",
        "A clustered queue has members on several nodes, which share its clients. Create one above, or with: " +
          "flyball domain cluster create NAME.",
      ),
    ),
  });
}

function clusterCard(first, now, refresh) {
  let cluster = first;
  const members = memberTable(() => cluster, refresh);
  const [about, marks] = [h("div"), h("div.badges")];
  const button = (label, act, tone = "") => actionButton(label, {
    tone,
    refused: actions.refused(),
    onclick: () => act(cluster, refresh, now()),
  });
  const element = card(
    first.name,
    {
      wide: true,
      note: `in vhost “${first.vhost}”`,
      actions: [
        h("a.button", { href: toLoop(loopName(first)) }, "Control loop"),
        button("Add a member", actions.addMember),
        button("Change", actions.changeCluster),
        button("Delete", actions.deleteCluster, "danger"),
      ],
    },
    marks,
    about,
    members.element,
  );
  return {
    element,
    update(found) {
      cluster = found;
      fill(marks, clusterBadges(cluster));
      fill(about, clusterFacts(cluster));
      members.reload();
    },
    destroy: () => members.destroy(),
  };
}

function clusterBadges({ members }) {
  const marked = members.filter((member) => member.marked).length;
  return [
    badge(plural(members.length, "member"), members.length ? "good" : "warn"),
    marked > 0 && badge(`${plural(marked, "member")} draining`, "warn"),
  ];
}

function clusterFacts(cluster) {
  const { options } = cluster;
  return facts([
    ["Load", [`${percent(cluster.load)} of its members' capacity`, loadMeter(cluster.load, options)]],
    ["Grows above", percent(options.theta_up)],
    ["Shrinks below", `${percent(options.theta_down)} for ${seconds(options.dwell_s)}`],
    ["Members", `${options.min_members} to ${options.max_members}`],
    ["Provisioner", options.provisioner || "none"],
    ["Policy", `${options.policy}, by ${options.loads}`],
  ]);
}

const loadMeter = (load, { theta_up: most }) =>
  barMeter(load, { tone: load > most ? "bad" : load > 0.8 * most ? "warn" : "good", label: `load ${percent(load)}` });

function memberTable(cluster, refresh) {
  const columns = [
    {
      key: "node",
      label: "Node",
      value: (member) => `${member.node} ${member.marked} ${member.fixed}`,
      render: (member) => [
        member.node,
        " ",
        member.marked && badge("draining", "warn"),
        member.fixed && badge("fixed"),
      ],
    },
    number("producers", "Producers"),
    { key: "x", label: "Share x", numeric: true, title: "Of all producers", value: (member) => percent(member.x) },
    number("consumers", "Consumers"),
    { key: "y", label: "Share y", numeric: true, title: "Of all consumers", value: (member) => percent(member.y) },
    {
      key: "load",
      label: "Load L",
      numeric: true,
      title: "Total weight of its clients, relative to its capacity",
      value: (member) => percent(member.load),
      render: (member) => [percent(member.load), loadMeter(member.load, cluster().options)],
    },
    { key: "capacity", label: "Capacity", numeric: true, value: (member) => digits(member.capacity) },
    number("ready", "Ready"),
    number("unacked", "Unacked"),
    number("given", "Transferred", "Messages transferred to other members"),
    {
      key: "remove",
      label: "Action",
      sort: false,
      value: (member) => member.marked,
      render: (member) => removeMemberButton(cluster(), member, refresh),
    },
  ];
  const table = new Table({
    label: `Members of ${cluster().name}`,
    noun: "member",
    columns,
    key: (member) => member.node,
    load: local(() => cluster().members, { columns, text: (member) => member.node }),
    sort: "node",
    refreshMs: null,
    empty: () => empty(
      "No members yet",
      "The manager adds one; if it does not, the decision log below shows why.",
    ),
  });
  table.element.classList.add("compact");
  return table;
}

function removeMemberButton(cluster, member, refresh) {
  const refused = actions.refused() ?? (member.marked ? "It is draining, and will be removed once it is empty." : null);
  return actionButton("Remove", { refused, onclick: () => actions.removeMember(cluster, member, refresh) });
}

// Sessions and other objects

const queueText = ({ vhost, queue }) => (queue === null ? "gone" : nameOf({ vhost, name: queue }));

function sessionTable() {
  const columns = [
    { key: "role", label: "Role" },
    { key: "queue", label: "Clustered queue", value: queueText },
    { key: "node", label: "Served by" },
    { key: "rate_per_s", label: "Messages", numeric: true, value: (one) => perSecond(one.rate_per_s) },
    { key: "id", label: "Session", render: (one) => h("code", {}, one.id) },
  ];
  return new Table({
    label: "Sessions",
    columns,
    key: (one) => `${one.id} ${one.node}`,
    load: local(
      () => get("/api/flyball/domain/sessions"),
      { columns, text: (one) => `${one.role} ${queueText(one)} ${one.node} ${one.id}` },
    ),
    sort: "queue",
    pageSize: 25,
    filterLabel: "Filter sessions",
    empty: () => empty(
      "No sessions",
      "Clients of ConnectionFactory and “flyball gateway” get the best member from the manager; AMQP clients " +
        "that use a clustered queue on any node count as well.",
    ),
  });
}

function othersCard({ topics, factories, provisioners }) {
  const line = (name, remark) => h("div", {}, `${name} `, h("span.note", {}, remark));
  const factory = (one) => line(one.name, `to ${one.nodes.join(", ") || "no node"}`);
  const topic = (one) => line(nameOf(one), plural(one.subscriptions.length, "subscription"));
  return card(
    "Also in this domain",
    {},
    facts([
      ["Connection factories", factories.length ? factories.map(factory) : "none"],
      ["Topics", topics.length ? topics.map(topic) : "none"],
      ["Provisioners", provisioners.join(", ") || "none"],
    ]),
  );
}
