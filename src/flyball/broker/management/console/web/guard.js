// Pages that not everybody may see. The node decides; this says so before it is asked in vain.

import { has, session } from "./api.js";
import { fill } from "./dom.js";
import { empty, page } from "./ui.js";

/** A page's mount, for users with the tag “monitoring”; others are told whom to ask. */
export const forMonitors = (title, mount) => (root, params) => {
  if (has("monitoring")) return mount(root, params);
  const why = `It is shown to users with the tag “monitoring”, which “${session.user?.name}” has not.`;
  fill(root, page(title, {}, empty("You may not see this page", `${why} Ask an administrator for it.`)));
  return null;
};

/** Why the user may not do what only administrators do, or null. */
export function onlyAdministrators(what) {
  return has("administrator") ? null : `You may look but not act: only administrators ${what}.`;
}
