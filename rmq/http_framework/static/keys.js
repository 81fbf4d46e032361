// Keys: never inside of a field, and never with Ctrl, Alt or Meta, which belong to the browser.
import { toggle } from "./live.js";

let current = null;

export function start() {
  document.querySelector(".foot .keys")?.removeAttribute("hidden");
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.target.closest("input, select, textarea, dialog, [contenteditable]")) {
      if (event.key === "Escape" && event.target.matches("input")) event.target.blur();
      return;
    }
    if (act(event.key)) event.preventDefault();
  });
}

function act(key) {
  const page = document.querySelector(`.nav a[data-key="${CSS.escape(key)}"]`);
  if (page) { page.click(); return true; }
  switch (key) {
    case "/": { const filter = document.getElementById("filter"); filter?.focus(); filter?.select(); return Boolean(filter); }
    case "?": document.getElementById("keys").showModal(); return true;
    case "r": if (!document.getElementById("live")?.hidden) toggle(); return true;
    case "j": return step(1);
    case "k": return step(-1);
    case "x": { const box = current?.isConnected && current.querySelector("input[type=checkbox]"); if (box) box.click(); return Boolean(box); }
    case "Enter": { const link = document.activeElement === document.body && current?.isConnected && current.querySelector("a"); if (link) link.click(); return Boolean(link); }
    default: return false;
  }
}

function step(by) {
  const rows = [...document.querySelectorAll("table.rows tbody tr")];
  if (!rows.length) return false;
  const index = rows.indexOf(current);
  const next = rows[index < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, index + by))];
  current?.classList.remove("at");
  next.classList.add("at");
  next.scrollIntoView({ block: "nearest" });
  current = next;
  document.activeElement?.blur?.();
  return true;
}
