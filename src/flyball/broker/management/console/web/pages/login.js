// The login form, shown instead of the console.

import { logIn, has } from "../api.js";
import { fill, h, logo } from "../dom.js";
import { field } from "../fields.js";
import { notice, problemBox } from "../ui.js";

export const title = "Log in";

export function mount(root, { reason, onDone }) {
  const name = field({ name: "name", label: "User", required: true });
  const password = field({ name: "password", label: "Password", type: "password", required: true });
  name.input.autocomplete = "username";
  password.input.autocomplete = "current-password";
  const said = h("div", { "aria-live": "polite" }, reason && notice(reason));
  const button = h("button.primary", { type: "submit" }, "Log in");

  async function submit(event) {
    event.preventDefault();
    button.disabled = true;
    try {
      await logIn(name.input.value, password.input.value);
      if (has("management")) onDone();
      else fill(
        said,
        notice(
          `User “${name.input.value}” has no access to the console: it needs the tag “monitoring” or “management”.`,
          "warn",
        ),
      );
    } catch (error) {
      fill(said, problemBox(error));
      password.input.select();
      password.input.focus();
    } finally {
      button.disabled = false;
    }
  }

  fill(
    root,
    h(
      "form.login",
      { onsubmit: submit },
      h("div.brand", {}, logo(), h("h1", {}, "Flyball")),
      h("p.lead", {}, "A message broker that regulates itself"),
      said,
      name.element,
      password.element,
      button,
      h("p.note", {}, "A new node has the user “guest” with password “guest”, from localhost only."),
    ),
  );
  name.input.focus();
}
