// Times: how long ago or in how long, renewed while the page is open; exact ones in UTC or in the reader's zone.
import { remember, remembered } from "./memory.js";

const button = document.getElementById("zone");
let isLocal = remembered("zone") === "local";

export function start() {
  button.hidden = false;
  button.addEventListener("click", () => {
    isLocal = !isLocal;
    remember("zone", isLocal ? "local" : "utc");
    writeTimes(document);
  });
  writeTimes(document);
  setInterval(() => writeTimes(document), 1000);
}

export function writeTimes(within) {
  button.textContent = isLocal ? "Local" : "UTC";
  const now = Date.now();
  for (const element of within.querySelectorAll("time[datetime]")) {
    const at = new Date(element.dateTime);
    const exact = written(at);
    const text = element.classList.contains("exact") ? exact : relative(at - now);
    if (element.textContent !== text) element.textContent = text;
    if (element.title !== exact) element.title = exact;
  }
}

export function written(at) {
  if (!isLocal) return at.toISOString().slice(0, 19).replace("T", " ") + " UTC";
  const two = (number) => String(number).padStart(2, "0");
  const minutes = -at.getTimezoneOffset();
  const zone = `${minutes < 0 ? "-" : "+"}${two(Math.floor(Math.abs(minutes) / 60))}:${two(Math.abs(minutes) % 60)}`;
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ` +
    `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())} ${zone}`;
}

export function relative(ms) {
  const seconds = Math.round(Math.abs(ms) / 1000);
  let text = `${seconds} s`;
  for (const [size, unit, smaller, part] of [[86400, "d", "h", 3600], [3600, "h", "min", 60], [60, "min", "s", 1]]) {
    if (seconds >= size) {
      const rest = Math.floor((seconds % size) / part);
      text = `${Math.floor(seconds / size)} ${unit}${rest ? ` ${rest} ${smaller}` : ""}`;
      break;
    }
  }
  if (seconds < 1) return "now";
  return ms < 0 ? `${text} ago` : `in ${text}`;
}
