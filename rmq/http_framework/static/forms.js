// Forms: the theme, copying commands, ticking all rows or a range of them, and buttons that wait for a typed name.
import { remember } from "./memory.js";

export function start() {
  const theme = document.getElementById("theme");
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const root = document.documentElement;
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    remember("theme", root.dataset.theme);
  });
  document.documentElement.classList.toggle("copies", Boolean(navigator.clipboard)); // there is none over plain http
  document.addEventListener("click", (event) => {
    const button = event.target.closest(".copy");
    if (button) copy(button);
    const box = event.target.closest("tbody input[type=checkbox]");
    if (box) tick(box, event.shiftKey);
    const all = event.target.closest("input[data-all]");
    if (all) for (const each of boxesOf(all)) each.checked = all.checked;
    count();
  });
  document.addEventListener("input", (event) => {
    const word = event.target.dataset?.confirms;
    if (word !== undefined) for (const button of event.target.form.querySelectorAll("button[data-confirmed]")) button.disabled = event.target.value !== word;
  });
  for (const field of document.querySelectorAll("input[data-confirms]")) field.dispatchEvent(new Event("input", { bubbles: true }));
  count();
}

async function copy(button) {
  try { await navigator.clipboard.writeText(button.dataset.copy); } catch { return; }
  const text = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = text; }, 1500);
}

let last = null;

const boxesOf = (element) => [...element.closest("table").querySelectorAll("tbody input[type=checkbox]")];

function tick(box, isRange) {
  const boxes = boxesOf(box);
  if (isRange && last?.isConnected && boxes.includes(last)) {
    const [from, to] = [boxes.indexOf(last), boxes.indexOf(box)].sort((a, b) => a - b);
    for (const each of boxes.slice(from, to + 1)) each.checked = box.checked;
  }
  last = box;
}

function count() {
  for (const bar of document.querySelectorAll("[data-counts]")) {
    const number = document.querySelectorAll(`#${CSS.escape(bar.dataset.counts)} tbody input:checked`).length;
    bar.querySelector(".ticked").textContent = number ? `${number} ticked` : "Tick rows to act on them";
    for (const button of bar.querySelectorAll("button")) button.disabled = !number;
  }
}
