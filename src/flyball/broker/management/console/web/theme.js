// Runs before anything is drawn, so that a chosen theme does not flash in the wrong colours first.
{
  let chosen = null;
  try {
    chosen = localStorage.getItem("flyball.theme");
  } catch {
    // A browser that keeps nothing still has its own setting.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
