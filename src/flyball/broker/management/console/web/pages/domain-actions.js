// Administrative actions on the domain, with confirmation; the leader carries them out.

import { post } from "../api.js";
import { ask, confirm } from "../dialog.js";
import { h } from "../dom.js";
import { json } from "../fields.js";
import { plural } from "../format.js";
import { onlyAdministrators } from "../guard.js";
import { attempt, toast } from "../toast.js";

const MOST_MOVES_SHOWN = 8;

const command = async (name, values) => (await post(`/api/flyball/domain/commands/${name}`, values)).result;

export const refused = () => onlyAdministrators("change the domain");

// Nodes

export async function addNode({ provisioners }, done) {
  const values = await ask({
    title: "Add a node",
    text: "The provisioner starts it; it appears here once it has joined.",
    action: "Start it",
    fields: [
      { name: "name", label: "Name", required: true },
      { name: "provisioner", label: "Started by", options: provisioners.map((name) => [name, name]), value: "local" },
    ],
    submit: ({ name, provisioner }) => command("node.add", { name, provisioner }),
  });
  if (values === null) return;
  toast(`Started node “${values.name}”.`, "good");
  await done();
}

export async function removeNode({ name, state }, done) {
  const isDead = state === "dead";
  const isSure = await confirm({
    title: isDead ? `Remove dead node “${name}”?` : `Remove node “${name}”?`,
    text: isDead
      ? "It does not answer. Its queues are being assigned to other nodes."
      : "Its clients, queues and members move to other nodes; then it stops.",
    action: isDead ? "Forget" : "Remove",
    typed: name,
  });
  const text = isDead ? `Removed node “${name}”.` : `Draining node “${name}”; it stops when it is empty.`;
  if (isSure && (await attempt(() => command("node.remove", { name, force: isDead }), text))) await done();
}

/** Show the moves, then make them. */
export async function rebalance(done) {
  const moves = await command("rebalance", { dry_run: true });
  if (!moves.length) {
    toast("Nothing to move: the nodes are balanced.", "info");
    return;
  }
  const isSure = await confirm({
    title: `Move ${plural(moves.length, "queue or client", "queues and clients")}?`,
    text: moveList(moves),
    action: "Rebalance",
    tone: "primary",
  });
  const text = (moved) => `${plural(moved.length, "move has", "moves have")} begun.`;
  if (isSure && (await attempt(() => command("rebalance", { dry_run: false }), text))) await done();
}

function moveList(moves) {
  const line = (move) => h(
    "span.move",
    {},
    h("b", {}, `${move.what} ${move.name}: ${move.source} → ${move.destination}`),
    h("span.note", {}, move.reason),
  );
  const rest = moves.length - MOST_MOVES_SHOWN;
  return [moves.slice(0, MOST_MOVES_SHOWN).map(line), rest > 0 && h("span.move", {}, `and ${rest} more`)];
}

// Clustered queues

const OPTIONS = [
  { name: "min_members", label: "Minimum members", type: "number", min: 1 },
  { name: "max_members", label: "Maximum members", type: "number", min: 1 },
  { name: "capacity", label: "Capacity of a member", help: "Maximum total weight of its producers and consumers." },
  { name: "theta_up", label: "Grow above this load", help: "As a share of the capacity, from 0 to 1." },
  { name: "theta_down", label: "Shrink below this load", help: "If the remaining members would be at or below this share." },
  { name: "dwell_s", label: "Dwell time before shrinking, in seconds" },
];
const NUMBERS = OPTIONS.map((option) => option.name);
const USUAL = { min_members: 1, max_members: 16, capacity: 100, theta_up: 1, theta_down: 0.75, dwell_s: 30 };
const MORE = {
  name: "more",
  label: "Other options (JSON)",
  value: "{}",
  help: 'For example {"policy": "plain", "surplus": 100}.',
};

function optionFields(present, provisioners) {
  const nobody = ["", "none: it grows on existing nodes only"];
  return [
    ...OPTIONS.map((option) => ({ ...option, value: String(present[option.name]) })),
    {
      name: "provisioner",
      label: "Provisioner",
      options: [nobody, ...provisioners.map((name) => [name, name])],
      value: present.provisioner ?? "",
    },
    MORE,
  ];
}

// Invalid numbers are sent as typed: the node reports the error.
const numberIn = (text) => (Number.isFinite(Number(text)) ? Number(text) : text);

function optionsIn(values) {
  const given = NUMBERS.filter((name) => values[name].trim() !== "");
  const numbers = given.map((name) => [name, numberIn(values[name])]);
  return { ...Object.fromEntries(numbers), provisioner: values.provisioner, ...json(values.more, MORE.label) };
}

export async function createCluster({ provisioners, nodes }, done) {
  const known = nodes.map((node) => node.name).join(", ");
  const values = await ask({
    title: "New clustered queue",
    action: "Create",
    fields: [
      { name: "name", label: "Name", required: true },
      { name: "vhost", label: "Vhost", value: "/", required: true },
      {
        name: "members",
        label: "Members on these nodes",
        help: `Comma-separated, from ${known}. Empty: the manager chooses.`,
      },
      ...optionFields(USUAL, provisioners),
    ],
    submit: async (typed) => command("cluster.create", {
      name: typed.name,
      vhost: typed.vhost,
      members: typed.members.split(",").map((name) => name.trim()).filter(Boolean),
      options: optionsIn(typed),
    }),
  });
  if (values === null) return;
  toast(`Created clustered queue “${values.name}”.`, "good");
  await done();
}

export async function changeCluster({ vhost, name, options }, done, { provisioners }) {
  const values = await ask({
    title: `Change “${name}”`,
    text: "Applies from now on; empty fields are unchanged.",
    action: "Change",
    fields: optionFields(options, provisioners),
    submit: async (typed) => command("cluster.change", { vhost, name, options: optionsIn(typed) }),
  });
  if (values === null) return;
  toast(`Changed “${name}”.`, "good");
  await done();
}

export async function deleteCluster({ vhost, name }, done) {
  const isSure = await confirm({
    title: `Delete “${name}”?`,
    text: "Deletes the clustered queue with its members and all their messages, on all nodes. This cannot be undone.",
    action: "Delete",
    typed: name,
  });
  const text = `Deleted clustered queue “${name}”.`;
  if (isSure && (await attempt(() => command("cluster.delete", { vhost, name }), text))) await done();
}

export async function addMember({ vhost, name, members }, done, { nodes }) {
  const taken = new Set(members.filter((member) => member.fixed).map((member) => member.node));
  const free = nodes.filter((node) => node.state === "up" && !taken.has(node.name));
  if (!free.length) {
    toast("Every running node already has a fixed member: add a node first.", "info");
    return;
  }
  const values = await ask({
    title: `Add a member of “${name}”`,
    text: "The member is fixed: the manager never removes it.",
    action: "Add",
    fields: [{ name: "node", label: "On node", options: free.map((node) => [node.name, node.name]) }],
    submit: ({ node }) => command("cluster.add", { vhost, name, node }),
  });
  if (values === null) return;
  toast(`Adding a member of “${name}” on “${values.node}”.`, "good");
  await done();
}

export async function removeMember({ vhost, name }, { node }, done) {
  const isSure = await confirm({
    title: `Remove the member on “${node}”?`,
    text: `It takes no new clients of “${name}”, transfers its messages to the others, and is removed once it is empty.`,
    action: "Remove",
  });
  const text = `Draining the member on “${node}”.`;
  if (isSure && (await attempt(() => command("cluster.remove", { vhost, name, node }), text))) await done();
}
