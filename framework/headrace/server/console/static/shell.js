/** The console begins here. It is the frame around every view: navigation, who the user is, what is wrong with the connection, keys. */

import { html, render, useEffect, useRef, useState } from "./vendor/preact.js";
import { events, get, remove } from "./shared/api.js";
import { DialogPlace, NoticePlace, open } from "./shared/dialog.js";
import { useLive } from "./shared/live.js";
import { followLinks, go, useAddress } from "./shared/router.js";
import { duration, local } from "./shared/text.js";
import { Failure, Loading, session, useCurrentInSight } from "./shared/ui.js";

/** The views: their addresses, their modules, and the navigation that they belong to. */
const VIEWS = [
  [/^$/, "overview", ""],
  [/^streams$/, "streams", "streams"],
  [/^streams\/([^/]+)$/, "stream", "streams"],
  [/^streams\/([^/]+)\/messages\/(\d+)$/, "message", "streams"],
  [/^streams\/([^/]+)\/consumers\/([^/]+)$/, "consumer", "consumers"],
  [/^streams\/([^/]+)\/consumers\/([^/]+)\/dead-letters$/, "dead_letters", "consumers"],
  [/^consumers$/, "consumers", "consumers"],
  [/^processes$/, "processes", "processes"],
  [/^sources$/, "sources", "sources"],
  [/^sources\/([^/]+)$/, "source", "sources"],
  [/^jobs$/, "jobs", "jobs"],
  [/^audit$/, "audit", "audit"],
];

const PAGES = [
  ["", "Overview", "o"],
  ["streams", "Streams", "s"],
  ["consumers", "Consumers", "c"],
  ["sources", "Sources", "u"],
  ["processes", "Processes", "p"],
  ["jobs", "Jobs", "j"],
  ["audit", "Audit", "a"],
];

function Shell() {
  const [me, setMe] = useState(undefined);
  const [error, setError] = useState(null);
  const address = useAddress();
  const read = () =>
    get("me").then(
      (answer) => {
        session.me = answer.data;
        setError(null);
        setMe(answer.data);
      },
      (problem) => {
        setError(problem.status === 401 ? null : problem);
        if (problem.status === 401) setMe(null);
      },
    );
  useEffect(() => {
    read();
    const onSignedOut = () => {
      session.me = null;
      setMe(null);
    };
    events.addEventListener("signed-out", onSignedOut);
    return () => events.removeEventListener("signed-out", onSignedOut);
  }, []);
  useEffect(() => {
    if (!error) return undefined;
    const timer = setTimeout(read, 2000);
    return () => clearTimeout(timer);
  }, [error]);
  if (error) return html`<main class="alone"><${Failure} error=${error} again=${read} /></main>`;
  if (me === undefined) return html`<main class="alone"><${Loading} /></main>`;
  if (me === null || address.path === "sign-in") {
    return html`<${View} name="sign_in" names=${[]} props=${{ signedIn: read, me }} />`;
  }
  return html`<${Frame} me=${me} address=${address} />`;
}

function Frame({ me, address }) {
  const main = useRef(null);
  const live = useLive("live");
  const [pattern, name, page] = VIEWS.find(([found]) => found.test(address.path)) ?? [null, null, null];
  const names = pattern ? pattern.exec(address.path).slice(1).map(decodeURIComponent) : [];
  useKeys();
  useEffect(() => scrollTo(0, 0), [address.path]);
  const skip = (event) => {
    event.preventDefault();
    (main.current.querySelector("h1") ?? main.current).focus();
  };
  return html`
    <a class="skip" href=${`${location.pathname}${location.search}#main`} data-native onClick=${skip}>Skip to the content</a>
    <div class="frame">
      <${Navigation} page=${page} me=${me} attention=${live.data?.data.attention.length ?? 0} />
      <main id="main" ref=${main} tabindex="-1">
        <${Banner} live=${live} />
        ${name
          ? html`<${View} key=${`${name} ${names.join(" ")}`} name=${name} names=${names} props=${{ live }} />`
          : html`<h1>Nothing is here</h1><p>The address leads to no view. Go to the <a href="./">overview</a>.</p>`}
      </main>
    </div>
    <${NoticePlace} />
    <${DialogPlace} />
  `;
}

const modules = new Map();

/** A view, whose module is loaded when it is first shown. */
function View({ name, names, props }) {
  const [view, setView] = useState(() => modules.get(name) ?? null);
  const [error, setError] = useState(null);
  const load = () => {
    setError(null);
    import(`./views/${name}.js`).then(
      (found) => {
        modules.set(name, found.default);
        setView(() => found.default);
      },
      () => setError(new Error("The view could not be loaded. The server may be away, or have been upgraded: reload the page.")),
    );
  };
  useEffect(() => {
    if (!view) load();
  }, [name]);
  if (error) return html`<${Failure} error=${error} again=${load} />`;
  if (!view) return html`<${Loading} />`;
  const Found = view;
  return html`<${Found} ...${props} names=${names} />`;
}

function Navigation({ page, me, attention }) {
  const items = PAGES.filter(([name]) => name !== "audit" || me.scopes.some((scope) => scope.startsWith("admin")));
  const place = useCurrentInSight(page);
  return html`<header class="side">
    <a class="brand" href="./" aria-label="Headrace, overview">
      <img src=${`${document.body.dataset.files}icon.svg`} alt="" width="24" height="24" /><span>Headrace</span>
    </a>
    <nav ref=${place} aria-label="Views">
      ${items.map(
        ([name, title, key]) => html`<a href=${name || "./"} aria-current=${page === name ? "page" : undefined} title=${`g ${key}`}>
          ${title}${name === "" && attention ? html` <span class="count bad">${attention}<span class="hidden"> need attention</span></span>` : null}
        </a>`,
      )}
    </nav>
    <div class="side-end">
      <${Theme} />
      <button type="button" class="quiet small" onClick=${() => open(Help)} title="?">Keys</button>
      ${me.via === "open"
        ? html`<span class="who quiet" title="No token exists, so everyone who reaches the server may do everything.">No sign-in</span>`
        : html`<span class="who" title=${me.scopes.join("\n")}>${me.name}</span>`}
      ${me.via === "session" ? html`<button type="button" class="quiet small" onClick=${signOut}>Sign out</button>` : null}
    </div>
  </header>`;
}

async function signOut() {
  await remove("session");
  events.dispatchEvent(new Event("signed-out"));
}

const THEMES = { auto: "Auto", light: "Light", dark: "Dark" };

function Theme() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme ?? "auto");
  const choose = (event) => {
    const chosen = event.target.value;
    setTheme(chosen);
    if (chosen === "auto") {
      delete document.documentElement.dataset.theme;
      localStorage.removeItem("headrace.theme");
    } else {
      document.documentElement.dataset.theme = chosen;
      localStorage.setItem("headrace.theme", chosen);
    }
    dispatchEvent(new Event("headrace-theme"));
  };
  return html`<label class="theme"><span class="hidden">Colours</span>
    <select value=${theme} onChange=${choose}>
      ${Object.entries(THEMES).map(([name, title]) => html`<option value=${name}>${title}</option>`)}
    </select>
  </label>`;
}

/** Says when the server or its database is away. What was shown last stays. */
function Banner({ live }) {
  const [away, setAway] = useState(null);
  useEffect(() => {
    const onContact = (event) => setAway((since) => (event.detail ? null : (since ?? Date.now())));
    events.addEventListener("contact", onContact);
    return () => events.removeEventListener("contact", onContact);
  }, []);
  const database = live.data?.data.database;
  const since = live.at ? ` What you see is of ${local(new Date(live.at).toISOString())}.` : "";
  if (away) {
    return html`<div class="banner bad" role="alert">The server does not answer.${since} It is tried again.</div>`;
  }
  if (live.error && live.error.status >= 500) {
    return html`<div class="banner bad" role="alert">${live.error.message}${since}</div>`;
  }
  if (database && !database.reachable) {
    return html`<div class="banner bad" role="alert">
      The database is away${database.error ? `: ${database.error}` : "."} What you see is of ${local(live.data.data.at)}.
    </div>`;
  }
  const offset = database?.clock_offset_seconds;
  if (offset && Math.abs(offset) > 5) {
    return html`<div class="banner warn">The clocks of the server and its database differ by ${duration(Math.abs(offset))}.</div>`;
  }
  return null;
}

const KEYS = [
  ["/", "Search in the view"],
  ["?", "Show the keys"],
  ...PAGES.map(([, title, key]) => [`g ${key}`, title]),
  ["Esc", "Close a dialog"],
];

function Help({ close }) {
  return html`<h2 id="dialog-title">Keys</h2>
    <dl class="keys">${KEYS.map(([key, title]) => html`<div><dt>${key.split(" ").map((one) => html`<kbd>${one}</kbd>`)}</dt><dd>${title}</dd></div>`)}</dl>
    <div class="act-buttons"><button type="button" class="primary" onClick=${close}>Close</button></div>`;
}

/** `/`, `?`, and `g` with the key of a view. */
function useKeys() {
  useEffect(() => {
    let began = 0;
    const onKey = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
      if (event.target instanceof Element && event.target.closest("input, select, textarea")) return;
      const page = performance.now() - began < 1500 && PAGES.find(([, , key]) => key === event.key);
      began = event.key === "g" ? performance.now() : 0;
      if (page) go(page[0] || "./");
      else if (event.key === "/") document.querySelector("main [data-search]")?.focus();
      else if (event.key === "?") open(Help);
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
}

followLinks();
render(html`<${Shell} />`, document.getElementById("app"));
