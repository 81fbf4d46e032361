// Charts: the figures under the pointer.
import { written } from "./times.js";

const LEFT = 46, RIGHT = 8, WIDTH = 440; // as charts.py draws them

export function start() {
  document.addEventListener("pointermove", (event) => {
    const chart = event.target.closest?.(".chart[data-figures]");
    for (const other of document.querySelectorAll(".chart .reading:not([hidden])")) if (!chart?.contains(other)) hide(other.closest(".chart"));
    if (chart) read(chart, event);
  });
}

function hide(chart) {
  chart.querySelector(".reading").hidden = true;
  chart.querySelector(".cursor").setAttribute("visibility", "hidden");
}

function read(chart, event) {
  const [times, ...lines] = chart.dataset.figures.split(";").map((row) => row.split(",").map((text) => text === "" ? null : Number(text)));
  const box = chart.querySelector("svg").getBoundingClientRect();
  const x = (event.clientX - box.left) / box.width * WIDTH;
  const share = (x - LEFT) / (WIDTH - LEFT - RIGHT);
  if (share < 0 || share > 1 || event.clientY < box.top || event.clientY > box.bottom) { hide(chart); return; }
  const wanted = times[0] + share * (times[times.length - 1] - times[0]);
  let nearest = 0;
  times.forEach((time, index) => { if (Math.abs(time - wanted) < Math.abs(times[nearest] - wanted)) nearest = index; });
  const names = [...chart.querySelectorAll(".legend .key")].map((element) => element.textContent);
  const reading = chart.querySelector(".reading");
  reading.textContent = [written(new Date(times[nearest])), ...names.map((name, index) => {
    const value = lines[index][nearest];
    return `${name}: ${value === null ? "unknown" : value.toLocaleString("en")}${chart.dataset.unit}`;
  })].join("\n");
  reading.hidden = false;
  const cursor = chart.querySelector(".cursor");
  const at = LEFT + (times[nearest] - times[0]) / (times[times.length - 1] - times[0]) * (WIDTH - LEFT - RIGHT);
  cursor.setAttribute("x1", at);
  cursor.setAttribute("x2", at);
  cursor.setAttribute("visibility", "visible");
}
