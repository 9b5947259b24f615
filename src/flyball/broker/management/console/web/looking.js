// Loads the object of a page, first and on refresh.

import { get, isDown, isLoggedOut } from "./api.js";
import { fill } from "./dom.js";
import { page, problemBox } from "./ui.js";

/** Return the object's document; null after an error, which is shown on the page. */
export async function lookAt(root, where, name, back) {
  try {
    return await get(where);
  } catch (error) {
    if (isLoggedOut(error)) throw error;
    fill(root, page(name, { crumb: back }, problemBox(error)));
    return null;
  }
}

/** Refresh, and report errors except those that the shell shows: no answer, or an ended session. */
export async function look(work, fail) {
  try {
    await work();
  } catch (error) {
    if (!isDown(error) && !isLoggedOut(error)) fail(error);
  }
}
