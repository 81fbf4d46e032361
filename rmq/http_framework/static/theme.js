// Sets the theme before the page is drawn, so that a dark page never flashes light.
(() => {
  let theme = null;
  try { theme = localStorage.getItem("rmq.theme"); } catch { /* the browser keeps nothing */ }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
})();
