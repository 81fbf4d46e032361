// What a browser remembers of how somebody looks at pages. Some keep nothing: then it holds until the page is left.
export function remembered(name) {
  try { return localStorage.getItem(`rmq.${name}`); } catch { return null; }
}

export function remember(name, value) {
  try { localStorage.setItem(`rmq.${name}`, value); } catch { /* the browser keeps nothing */ }
}
