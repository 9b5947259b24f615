// Pages that need a tag. The node enforces it; this avoids a request that would be refused.

import { has, session } from "./api.js";
import { fill } from "./dom.js";
import { empty, page } from "./ui.js";

/** Wrap a page's mount: users without the tag “monitoring” see an explanation. */
export const forMonitors = (title, mount) => (root, params) => {
  if (has("monitoring")) return mount(root, params);
  const why = `It requires the tag “monitoring”, which user “${session.user?.name}” lacks.`;
  fill(root, page(title, {}, empty("Access denied", `${why} Ask an administrator.`)));
  return null;
};

/** Return why the user may not do an administrator's action, or null. */
export function onlyAdministrators(what) {
  return has("administrator") ? null : `Read-only access: only administrators may ${what}.`;
}
