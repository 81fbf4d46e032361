// Suggestions for a filter: first a field, then an operator, then a value, by where the cursor stands.
const JOINS = ["and", "or", "and not"];

export function start() {
  const input = document.querySelector("input[data-words]");
  if (!input) return;
  const fields = new Map(input.dataset.words.split("\n").filter(Boolean).map((row) => {
    const [name, ...values] = row.split("\t");
    return [name, values];
  }));
  const list = document.createElement("ul");
  list.className = "suggestions";
  list.id = "suggestions";
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Suggestions");
  list.hidden = true;
  input.after(list);
  input.setAttribute("role", "combobox");
  input.setAttribute("aria-controls", list.id);
  input.setAttribute("aria-autocomplete", "list");
  let chosen = -1;
  let from = 0;
  close();

  function close() {
    list.hidden = true;
    list.replaceChildren();
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
    chosen = -1;
  }

  function open() {
    const found = suggestions(input.value.slice(0, input.selectionStart), fields);
    from = found.from;
    if (!found.texts.length) { close(); return; }
    list.replaceChildren(...found.texts.map((text, index) => {
      const item = document.createElement("li");
      item.id = `suggestion-${index}`;
      item.setAttribute("role", "option");
      item.setAttribute("aria-selected", "false");
      item.textContent = text;
      item.addEventListener("pointerdown", (event) => { event.preventDefault(); take(index); });
      return item;
    }));
    list.hidden = false;
    chosen = -1;
    input.setAttribute("aria-expanded", "true");
  }

  function choose(index) {
    const items = [...list.children];
    chosen = (index + items.length) % items.length;
    items.forEach((item, number) => item.setAttribute("aria-selected", String(number === chosen)));
    input.setAttribute("aria-activedescendant", items[chosen].id);
  }

  function take(index) {
    const text = list.children[index].textContent;
    input.setRangeText(text, from, input.selectionStart, "end");
    close(); // Tab leaves the field then; typing opens the next list
  }

  input.addEventListener("input", open);
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    if (list.hidden) {
      if (event.key === "ArrowDown") { open(); event.preventDefault(); }
      return;
    }
    if (event.key === "ArrowDown") { choose(chosen + 1); event.preventDefault(); }
    else if (event.key === "ArrowUp") { choose(chosen < 0 ? -1 : chosen - 1); event.preventDefault(); }
    else if (event.key === "Tab" && !event.shiftKey) { take(Math.max(0, chosen)); event.preventDefault(); }
    else if (event.key === "Enter" && chosen >= 0) { take(chosen); event.preventDefault(); }
    else if (event.key === "Escape") { close(); event.preventDefault(); event.stopPropagation(); }
  });
}

// Returns what may stand at the end of a text, and where the part begins that it replaces.
export function suggestions(text, fields) {
  const operators = ["=", "!=", " contains ", " matches ", "<", "<=", ">", ">="];
  const value = /([A-Za-z_][\w.-]*)\s*(=|!=|<=|>=|<|>|contains\b|matches\b)\s*("?)([^"\s()]*)$/.exec(text);
  if (value) {
    const [, field, , quote, typed] = value;
    const from = text.length - typed.length - quote.length;
    const values = (fields.get(field) ?? []).filter((each) => each.toLowerCase().includes(typed.toLowerCase()) && each !== typed);
    return { from, texts: values.slice(0, 8).map((each) => `"${each.replaceAll("\\", "\\\\").replaceAll('"', '\\"')}" `) };
  }
  if (/["\w)]\s+$/.test(text) && !/\b(and|or|not)\s+$/.test(text) && text.trim()) return { from: text.length, texts: JOINS.map((each) => `${each} `) };
  const word = /([A-Za-z_][\w.-]*)?$/.exec(text)[0];
  if (fields.has(word)) return { from: text.length, texts: operators };
  const names = [...fields.keys()].filter((name) => name.startsWith(word));
  return { from: text.length - word.length, texts: names.slice(0, 12) };
}
