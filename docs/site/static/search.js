// The search page: Pagefind's parts, and the term of the address (`search.html?q=retry`).
import "../pagefind/pagefind-component-ui.js";

const root = new URL("../", import.meta.url);
const { configureInstance, getInstanceManager } = window.PagefindComponents;
// Keywords are the synonyms of docs/site/search.toml: their page comes before pages that only use the word often. A title
// counts little here because it does not know the weight of its page; the first heading does.
configureInstance("default", {
  bundlePath: new URL("pagefind/", root).pathname,
  baseUrl: root.pathname,
  ranking: { termFrequency: 0.6, pageLength: 0.3, metaWeights: { title: 0.5, keywords: 12 } },
});

// Pagefind reads its options when its first element appears.
document.getElementById("search").innerHTML =
  "<pagefind-input></pagefind-input><pagefind-summary></pagefind-summary><pagefind-results></pagefind-results>";
const term = new URLSearchParams(location.search).get("q");
if (term) {
  document.querySelector("pagefind-input input").value = term;
  getInstanceManager().getInstance("default").triggerSearch(term);
}
