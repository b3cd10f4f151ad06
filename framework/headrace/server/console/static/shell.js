/** The console begins here. It is the frame around every view: navigation, who the user is, what is wrong with the connection, keys. */

import { events, get, remove } from "./shared/api.js";
import { html, render, useEffect, useRef, useState } from "./vendor/preact.js";
import { DialogPlace, NoticePlace, open } from "./shared/dialog.js";
import { begin, useLive } from "./shared/live.js";
import { followLinks, go, useAddress } from "./shared/router.js";
import { duration, local } from "./shared/text.js";
import { Failure, may, session, useCurrentInSight } from "./shared/ui.js";
import Audit from "./views/audit.js";
import Consumer from "./views/consumer.js";
import Consumers from "./views/consumers.js";
import DeadLetters from "./views/dead_letters.js";
import Jobs from "./views/jobs.js";
import Message from "./views/message.js";
import Overview from "./views/overview.js";
import Processes from "./views/processes.js";
import Schedule from "./views/schedule.js";
import Schedules from "./views/schedules.js";
import SignIn from "./views/sign_in.js";
import Source from "./views/source.js";
import Sources from "./views/sources.js";
import Stream from "./views/stream.js";
import Streams from "./views/streams.js";
import Tokens from "./views/tokens.js";

/** The views: their addresses, their components, and the navigation that they belong to. */
const VIEWS = [
  [/^$/, Overview, ""],
  [/^streams$/, Streams, "streams"],
  [/^streams\/([^/]+)$/, Stream, "streams"],
  [/^streams\/([^/]+)\/messages\/(\d+)$/, Message, "streams"],
  [/^streams\/([^/]+)\/consumers\/([^/]+)$/, Consumer, "consumers"],
  [/^streams\/([^/]+)\/consumers\/([^/]+)\/dead-letters$/, DeadLetters, "consumers"],
  [/^consumers$/, Consumers, "consumers"],
  [/^processes$/, Processes, "processes"],
  [/^sources$/, Sources, "sources"],
  [/^sources\/([^/]+)$/, Source, "sources"],
  [/^schedules$/, Schedules, "schedules"],
  [/^schedules\/([^/]+)\/([^/]+)$/, Schedule, "schedules"],
  [/^jobs$/, Jobs, "jobs"],
  [/^audit$/, Audit, "audit"],
  [/^tokens$/, Tokens, "tokens"],
];

/** The navigation: address, title, key, and who may see it if that is not everyone. */
const PAGES = [
  ["", "Overview", "o"],
  ["streams", "Streams", "s"],
  ["consumers", "Consumers", "c"],
  ["sources", "Sources", "u"],
  ["schedules", "Schedules", "e", () => may("consume")],
  ["processes", "Processes", "p"],
  ["jobs", "Jobs", "j"],
  ["audit", "Audit", "a", () => session.me.scopes.some((scope) => scope.startsWith("admin"))],
  ["tokens", "Tokens", "t", () => may("admin")],
];

/** The pages that the caller may see. */
const pages = () => PAGES.filter(([, , , allowed]) => !allowed || allowed());

/**
 * Who the user is: `me` is null if there is no session, and undefined if `error` prevents to know it.
 * @returns {Promise<{me: any, error: import("./shared/api.js").ApiError | null}>}
 */
async function identify() {
  try {
    session.me = (await get("me")).data;
    return { me: session.me, error: null };
  } catch (problem) {
    return problem.status === 401 ? { me: null, error: null } : { me: undefined, error: problem };
  }
}

function Shell({ user }) {
  const [{ me, error }, setUser] = useState(user);
  const address = useAddress();
  const read = async () => setUser(await identify());
  useEffect(() => {
    const onSignedOut = () => {
      session.me = null;
      setUser({ me: null, error: null });
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
  // Dialogs are outside of the frame: the one with the first token stays when the server begins to want one.
  return html`
    ${me === null || address.path === "sign-in" ? html`<${SignIn} signedIn=${read} me=${me} />` : html`<${Frame} me=${me} address=${address} />`}
    <${NoticePlace} />
    <${DialogPlace} />
  `;
}

function Frame({ me, address }) {
  const main = useRef(null);
  const live = useLive("live");
  const [pattern, View, page] = VIEWS.find(([found]) => found.test(address.path)) ?? [null, null, null];
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
        ${View
          ? html`<${View} key=${`${pattern} ${names.join(" ")}`} names=${names} live=${live} />`
          : html`<h1>Nothing is here</h1><p>The address leads to no view. Go to the <a href="./">overview</a>.</p>`}
      </main>
    </div>
  `;
}

/** The icon, as in `icon.svg`. In the page it costs less than an image, which the browser treats as a separate document. */
const Mark = () => html`<svg viewBox="0 0 32 32" width="24" height="24" aria-hidden="true">
  <rect width="32" height="32" rx="7" fill="#0b7285" />
  <path d="M5 11c4-4 7-4 11 0s7 4 11 0M5 17c4-4 7-4 11 0s7 4 11 0M5 23c4-4 7-4 11 0s7 4 11 0" fill="none" stroke="#fff" stroke-width="2.6" stroke-linecap="round" />
</svg>`;

function Navigation({ page, me, attention }) {
  const place = useCurrentInSight(page);
  return html`<header class="side">
    <a class="brand" href="./" aria-label="Headrace, overview">
      <${Mark} /><span>Headrace</span>
    </a>
    <nav ref=${place} aria-label="Views">
      ${pages().map(
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

/** Says when the server or its database is unavailable. The last state stays. */
function Banner({ live }) {
  const [away, setAway] = useState(null);
  useEffect(() => {
    const onContact = (event) => setAway((since) => (event.detail ? null : (since ?? Date.now())));
    events.addEventListener("contact", onContact);
    return () => events.removeEventListener("contact", onContact);
  }, []);
  const database = live.data?.data.database;
  const since = live.at ? ` The last state shown is of ${local(new Date(live.at).toISOString())}.` : "";
  if (away) {
    return html`<div class="banner bad" role="alert">The server does not answer.${since} Retrying.</div>`;
  }
  if (live.error && live.error.status >= 500) {
    return html`<div class="banner bad" role="alert">${live.error.message}${since}</div>`;
  }
  if (database && !database.reachable) {
    return html`<div class="banner bad" role="alert">
      The database is unavailable${database.error ? `: ${database.error}` : "."} The last state shown is of ${local(live.data.data.at)}.
    </div>`;
  }
  const offset = database?.clock_offset_seconds;
  if (offset && Math.abs(offset) > 5) {
    return html`<div class="banner warn">The clocks of the server and its database differ by ${duration(Math.abs(offset))}.</div>`;
  }
  return null;
}

const keys = () => [
  ["/", "Search in the view"],
  ["?", "Show the keys"],
  ...pages().map(([, title, key]) => [`g ${key}`, title]),
  ["Esc", "Close a dialog"],
];

function Help({ close }) {
  return html`<h2 id="dialog-title">Keys</h2>
    <dl class="keys">${keys().map(([key, title]) => html`<div><dt>${key.split(" ").map((one) => html`<kbd>${one}</kbd>`)}</dt><dd>${title}</dd></div>`)}</dl>
    <div class="act-buttons"><button type="button" class="primary" onClick=${close}>Close</button></div>`;
}

/** `/`, `?`, and `g` with the key of a view. */
function useKeys() {
  useEffect(() => {
    let began = 0;
    const onKey = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
      if (event.target instanceof Element && event.target.closest("input, select, textarea")) return;
      const page = performance.now() - began < 1500 && pages().find(([, , key]) => key === event.key);
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

/** Milliseconds that the first drawing waits for the live state, once it is known who the user is. */
const PATIENCE = 300;

/** Draws the page once, with what it shows, instead of step by step: each step costs a layout and a frame. */
async function start() {
  const live = begin("live");
  const user = await identify();
  if (user.me) await Promise.race([live, new Promise((resolve) => setTimeout(resolve, PATIENCE))]);
  render(html`<${Shell} user=${user} />`, document.getElementById("app"));
}

followLinks();
start();
