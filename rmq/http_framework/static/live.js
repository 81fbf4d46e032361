// Live pages: the server sends the page when it has changed, and the parts marked data-live take what is new.
// Where a stream cannot be had, the page is fetched every few seconds. A hidden tab has no stream: browsers allow
// six connections to a server in all.
import { remember, remembered } from "./memory.js";
import { writeTimes } from "./times.js";

const POLL_MS = 4000;
const STALE_MS = 8000; // without news for so long, a page is not live
const button = document.getElementById("live");
const state = document.getElementById("state");
const stale = document.getElementById("stale");
let wanted = remembered("live") !== "off";
let source = null;
let timer = null;
let waiting = null; // the newest page, while a part of it waits
let shownAt = Date.now(); // when what is shown was true
let askedAt = Date.now(); // since when there should be news
let failure = ""; // why there are none
let isTold = false; // whether the server itself says so

export function start() {
  if (!button || !document.querySelector("[data-live]")) return;
  button.hidden = false;
  button.addEventListener("click", toggle);
  document.addEventListener("visibilitychange", follow);
  document.addEventListener("change", () => { if (waiting) offer(waiting); });
  document.addEventListener("focusout", () => { if (waiting) setTimeout(() => waiting && offer(waiting)); });
  window.addEventListener("pagehide", stop);
  window.addEventListener("pageshow", follow);
  setInterval(judge, 1000);
  follow();
}

export function toggle() {
  wanted = !wanted;
  remember("live", wanted ? "on" : "off");
  follow();
}

function follow() {
  show(wanted);
  if (!wanted || document.hidden) stop();
  else if (!source && !timer) listen();
}

function show(on, text = on ? "Live" : "Paused") {
  button.setAttribute("aria-pressed", String(on));
  button.querySelector(".live-text").textContent = text;
}

function stop() {
  source?.close();
  source = null;
  clearTimeout(timer);
  timer = null;
}

function listen() {
  askedAt = Date.now();
  source = new EventSource(location.href);
  source.addEventListener("page", (event) => { renew(); offer(event.data); });
  source.addEventListener("same", renew);
  source.addEventListener("failure", (event) => fail(event.data, true));
  source.addEventListener("end", () => { stop(); follow(); });
  source.onerror = () => {
    // CLOSED: the answer was no stream. Otherwise the browser tries again by itself.
    if (source.readyState === EventSource.CLOSED) { stop(); poll(); } else fail("The connection is lost; trying again");
  };
}

async function poll() {
  timer = setTimeout(poll, POLL_MS);
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-cache" });
    if (answer.redirected) { location.reload(); return; }
    if (answer.ok) { renew(); offer(await answer.text()); } else fail(`The server answers ${answer.status}`);
  } catch { fail("The server does not answer; trying again"); }
}

function renew() {
  shownAt = Date.now();
  fail("");
}

function fail(text, told = false) {
  failure = text;
  isTold = told;
  judge();
}

// Says in red that the page is old, and how old: numbers that stand still look like those of a quiet system.
function judge() {
  const isStale = wanted && !document.hidden && (isTold || Date.now() - Math.max(shownAt, askedAt) > STALE_MS);
  stale.hidden = !isStale;
  button.classList.toggle("stale", isStale);
  if (isStale) {
    const seconds = Math.round((Date.now() - shownAt) / 1000);
    const age = seconds < 120 ? `${seconds} s` : `${Math.round(seconds / 60)} min`;
    say(stale.querySelector(".why"), `${failure || "There is no news from the server"}.`);
    say(stale.querySelector(".age"), `What is shown is ${age} old.`);
  }
  say(state, failure);
  const text = button.querySelector(".live-text");
  if (isStale) text.textContent = "Not live"; else if (text.textContent === "Not live") text.textContent = "Live";
}

function say(element, text) { if (element.textContent !== text) element.textContent = text; }

// Rows that are ticked, and forms that are being filled in, must not move: their part of the page waits.
function isHeld(region) {
  const active = document.activeElement;
  return Boolean(region.querySelector("tbody input:checked")) ||
    (region.contains(active) && active.matches("input, select, textarea"));
}

function offer(text) {
  waiting = null;
  const page = new DOMParser().parseFromString(text, "text/html");
  for (const region of document.querySelectorAll("[data-live]")) {
    const fresh = page.getElementById(region.id);
    if (!fresh) continue;
    if (isHeld(region)) waiting = text; else merge(region, fresh);
  }
  show(wanted, waiting && document.querySelector("[data-live] tbody input:checked") ? "Waits for ticked rows" : undefined);
  writeTimes(document);
}

const key = (node) => node.nodeType === Node.ELEMENT_NODE ? node.dataset.key ?? node.id : "";

// Makes an element like a fresh one, and keeps what is the same: the focus, the selection and what was unfolded stay.
export function merge(old, fresh) {
  const kept = old.tagName === "DETAILS" ? ["open"] : old.tagName === "TR" ? ["class"] : [];
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && !kept.includes(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value && !kept.includes(name)) old.setAttribute(name, value);
  const byKey = new Map();
  for (const child of old.children) if (key(child)) byKey.set(key(child), child);
  let place = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    const named = key(child) && byKey.get(key(child));
    if (named) {
      if (named !== place) old.insertBefore(named, place); else place = place.nextSibling;
      merge(named, child);
    } else if (place && !key(place) && place.nodeType === child.nodeType && place.nodeName === child.nodeName && !key(child)) {
      const same = place;
      place = place.nextSibling;
      if (same.nodeType !== Node.ELEMENT_NODE) { if (same.data !== child.data) same.data = child.data; }
      else if (same.tagName === "TIME") { if (same.dateTime !== child.dateTime) same.replaceWith(document.importNode(child, true)); }
      else merge(same, child);
    } else old.insertBefore(document.importNode(child, true), place);
  }
  while (place) { const next = place.nextSibling; place.remove(); place = next; }
}
