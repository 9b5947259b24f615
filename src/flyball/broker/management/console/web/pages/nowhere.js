// Where an address leads that is none.

import { fill, h } from "../dom.js";
import { page } from "../ui.js";

export const title = "There is no such page";

export function mount(root) {
  fill(root, page(title, {}, h("p", {}, h("a", { href: "#/" }, "Go to the overview"))));
}
