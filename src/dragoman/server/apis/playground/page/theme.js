// Light or dark before the first paint: this is no module, so that nothing is drawn in the wrong colours.
"use strict";
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("dragoman-theme");
  } catch {
    // storage is switched off: the system decides
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
