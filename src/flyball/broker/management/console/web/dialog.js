// Confirmation and input dialogs.

import { isLoggedOut } from "./api.js";
import { fill, h } from "./dom.js";
import { control, labelled } from "./fields.js";
import { problemBox } from "./ui.js";

/** Ask for confirmation. With `typed`, that text must be typed first: for actions that cannot be undone. */
export async function confirm({ title, text, action, tone = "danger", typed = null }) {
  const guard = { name: "typed", label: `Type “${typed}” to continue`, required: true, mustBe: typed };
  return (await ask({ title, text, action, tone, fields: typed === null ? [] : [guard] })) !== null;
}

/** Ask for values: {name: text}, or null if cancelled.
 *
 * `submit(values)` runs first: if it fails, the dialog shows the error and stays open.
 */
export function ask({ title, text, action, tone = "primary", fields = [], submit = async () => {} }) {
  const inputs = new Map(fields.map((field) => [field.name, control(field)]));
  const valuesNow = () => Object.fromEntries([...inputs].map(([name, input]) => [name, input.value]));
  const said = h("div", { "aria-live": "polite" });
  const go = h("button", { type: "submit", class: tone }, action);
  const cancel = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const form = h(
    "form",
    {},
    h("h2", { id: "dialog-title" }, title),
    text && h("p", {}, text),
    fields.map((field) => labelled(field, inputs.get(field.name))),
    said,
    h("div.buttons", {}, cancel, go),
  );
  const dialog = h("dialog", { "aria-labelledby": "dialog-title" }, form);
  let values = null;

  const guard = () => {
    go.disabled = fields.some((field) => field.mustBe !== undefined && inputs.get(field.name).value !== field.mustBe);
  };
  const send = async (event) => {
    event.preventDefault();
    go.disabled = true;
    try {
      await submit(valuesNow());
      values = valuesNow();
      dialog.close();
    } catch (error) {
      if (isLoggedOut(error)) dialog.close();
      fill(said, problemBox(error));
    }
    guard();
  };
  form.addEventListener("input", guard);
  form.addEventListener("submit", send);
  guard();
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(values);
    });
  });
}
