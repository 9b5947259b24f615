// The page for unknown addresses.

import { fill, h } from "../dom.js";
import { page } from "../ui.js";

export const title = "Page not found";

export function mount(root) {
  fill(root, page(title, {}, h("p", {}, h("a", { href: "#/" }, "Go to the overview"))));
}
