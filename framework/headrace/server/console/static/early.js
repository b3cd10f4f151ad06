// Runs before the first paint and before the other scripts are there. It is no module, since modules run later.

// Sets the remembered colours.
{
  const remembered = localStorage.getItem("headrace.theme");
  if (remembered === "dark" || remembered === "light") document.documentElement.dataset.theme = remembered;
}

// Asks what every page asks first, while the modules are loaded. `shared/api.js` takes the answers. That of the live state may be
// of the last minute: the page is there immediately, and is refreshed soon.
globalThis.headraceEarly = Object.fromEntries(
  ["me", "live"].map((target) => {
    const headers = { accept: "application/json", "x-headrace-console": "first" };
    const answer = fetch(new URL(`../v1/${target}`, document.baseURI), { headers, cache: "no-store" });
    answer.catch(() => {});
    return [target, answer];
  }),
);

// Makes the browser read its locales, which takes it long, while it waits for the modules. `shared/text.js` needs them.
new Intl.NumberFormat();
new Intl.DateTimeFormat();
