"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const one = (id) => document.getElementById(id);
  const buttons = all("button.stage");
  const drawings = all(".drawing");
  const texts = all("pre.text");
  const frame = one("graphs");
  let current = buttons.length - 1;
  let view = "after";

  // Which drawing is shown: that of the pass, or before it that of the one before.
  function show() {
    const first = current === 0;
    const shown = view === "before" && !first ? current - 1 : current;
    drawings.forEach((drawing, nth) => { drawing.hidden = nth !== shown; });
    texts.forEach((text, nth) => { text.hidden = nth !== current; });
    buttons.forEach((button, nth) => button.setAttribute("aria-pressed", String(nth === current)));
    frame.dataset.view = first ? "none" : view;
    one("before").disabled = first;
    for (const name of ["before", "after"]) {
      one(name).setAttribute("aria-pressed", String(view === name && !(first && name === "before")));
    }
    centre(drawings[shown]);
    one("stage-name").textContent =
      first ? "as traced" : `${view} ${buttons[current].textContent}`;
  }

  // A graph is often wider than its frame, and begins in its middle.
  function centre(drawing) {
    const first = drawing.querySelector(".box");
    if (!first) return;
    const [box, around] = [first.getBoundingClientRect(), frame.getBoundingClientRect()];
    frame.scrollLeft += (box.left + box.right - around.left - around.right) / 2;
  }

  buttons.forEach((button, nth) => {
    button.addEventListener("click", () => { current = nth; view = "after"; show(); });
    button.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      const next = buttons[nth + step];
      if (step && next) { event.preventDefault(); next.focus(); next.click(); }
    });
  });
  for (const name of ["before", "after"]) {
    one(name).addEventListener("click", () => { view = name; show(); });
  }
  one("fit").addEventListener("click", () => {
    const on = frame.classList.toggle("fit");
    one("fit").setAttribute("aria-pressed", String(on));
  });

  // A line of the program, and everything that came from it, light up together.
  const places = new Map();
  for (const element of all("[data-line]")) {
    const key = element.dataset.line;
    if (!places.has(key)) places.set(key, []);
    places.get(key).push(element);
  }
  let lit = null;
  function light(key) {
    if (key === lit) return;
    for (const element of places.get(lit) ?? []) element.classList.remove("hit");
    for (const element of places.get(key) ?? []) element.classList.add("hit");
    lit = key;
  }
  const keyOf = (event) => event.target.closest?.("[data-line]")?.dataset.line ?? null;
  document.addEventListener("pointerover", (event) => light(keyOf(event)));
  document.addEventListener("focusin", (event) => light(keyOf(event)));
  document.addEventListener("click", (event) => {
    const line = event.target.closest?.("li[data-line]");
    if (!line) return;
    const box = places.get(line.dataset.line).find(
      (element) => element.classList.contains("box") && !element.closest("[hidden]"));
    box?.scrollIntoView({ block: "center", inline: "center" });
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target.matches?.("li[data-line]")) event.target.click();
  });

  show();
})();
