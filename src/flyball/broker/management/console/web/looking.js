// Looking at what a page is about: first, and then again and again.

import { get, isDown, isLoggedOut } from "./api.js";
import { fill } from "./dom.js";
import { page, problemBox } from "./ui.js";

/** What the node tells of it; null if it tells nothing, and then the page says why. */
export async function lookAt(root, where, name, back) {
  try {
    return await get(where);
  } catch (error) {
    if (isLoggedOut(error)) throw error;
    fill(root, page(name, { crumb: back }, problemBox(error)));
    return null;
  }
}

/** Look, and tell what fails, but for what the frame around all pages tells: no answer, or an ended session. */
export async function look(work, fail) {
  try {
    await work();
  } catch (error) {
    if (!isDown(error) && !isLoggedOut(error)) fail(error);
  }
}
