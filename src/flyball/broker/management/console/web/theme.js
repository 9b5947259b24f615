// Runs before the first paint, so that the page does not flash in the wrong theme.
{
  let chosen = null;
  try {
    chosen = localStorage.getItem("flyball.theme");
  } catch {
    // Without storage the browser's own setting applies.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
