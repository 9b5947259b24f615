// Form controls with labels, and their values.

import { Problem } from "./api.js";
import { h, icon } from "./dom.js";

let fieldNumber = 0;

/** A control without label. */
export function control(field) {
  const common = {
    id: `field-${(fieldNumber += 1)}`,
    name: field.name,
    required: field.required,
    autocomplete: "off",
  };
  if (field.options) {
    const option = ([value, label]) => h("option", { value, selected: value === field.value }, label);
    return h("select", common, field.options.map(option));
  }
  const typed = { ...common, spellcheck: "false", value: field.value ?? "" };
  if (field.rows) return h("textarea", { ...typed, rows: field.rows });
  return h("input", { ...typed, type: field.type ?? "text", min: field.min, max: field.max });
}

/** A control with label and help. */
export function labelled(field, input) {
  const help = field.help && h("small.help", { id: `${input.id}-help` }, field.help);
  if (help) input.setAttribute("aria-describedby", help.id);
  return h("div.field", {}, h("label", { for: input.id }, field.label), input, help);
}

/** Create a control with its labelled frame. */
export function field(description) {
  const input = control(description);
  return { input, element: labelled(description, input) };
}

/** A filter field of a list, with its companions. The key / focuses the first one of a page. */
export function filterField(label, oninput, ...more) {
  const id = `field-${(fieldNumber += 1)}`;
  const input = h(
    "input.filter",
    { id, type: "search", placeholder: label, oninput, autocomplete: "off", spellcheck: "false" },
  );
  const name = h("label.aside", { for: id }, label);
  return { input, element: h("div.filter-field", { role: "search" }, name, icon("search"), input, more) };
}

/** Parse a typed JSON object; empty input is an empty object. */
export function json(text, label) {
  let value;
  try {
    value = JSON.parse(text.trim() || "{}");
  } catch (error) {
    throw new Problem(400, `“${label}” is not JSON: ${error.message}.`, 'Write it as {"name": "value"}.');
  }
  if (value !== null && typeof value === "object" && !Array.isArray(value)) return value;
  throw new Problem(400, `“${label}” must be an object.`, 'Write it as {"name": "value"}.');
}
