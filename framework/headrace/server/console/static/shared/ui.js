/** The small parts of which views are made. */

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { curl } from "./api.js";
import { exact, isForever, local, number, relative } from "./text.js";

export { html };

/** The caller's identity and rights. The shell fills it in. */
export const session = { me: null };

/**
 * Whether the caller has a scope. Without a stream: for all streams.
 * @param {"publish" | "consume" | "admin"} need
 * @param {string} [stream]
 */
export function may(need, stream) {
  const scopes = session.me?.scopes ?? [];
  const wanted = [need, "admin", ...(stream ? [`${need}:${stream}`, `admin:${stream}`] : [])];
  return wanted.some((one) => scopes.includes(one));
}

/** A time in the local zone, with the exact one in UTC on hover. `ago` shows how long ago it was. */
export function Time({ at, ago = false }) {
  if (!at) return html`<span class="quiet">–</span>`;
  if (isForever(at)) return html`<span>until resumed</span>`;
  return html`<time datetime=${at} title=${exact(at)}>${ago ? relative(at) : local(at)}</time>`;
}

const TONES = {
  good: ["running", "active", "ok", "live", "streaming", "done", "acked", "closed", "idle", "accepted", "caught up", "valid"],
  busy: ["in_flight", "backfilling", "catching up", "replaying", "waiting", "starting", "new", "half-open", "next"],
  warn: ["paused", "parked", "behind", "lagging", "slow", "full", "limited", "rate limited", "cancelled", "draining", "growing", "unattended", "alarm", "degraded", "filters"],
  bad: ["blocked", "failed", "failing", "dead_letter", "dead", "lost", "gone", "stopped", "open", "refused", "stuck", "error", "breaker", "event_loop", "dead_letters"],
};
const MARKS = { good: "●", busy: "◐", warn: "▲", bad: "■", plain: "○" };

/** @param {string} state */
export function toneOf(state) {
  for (const [tone, names] of Object.entries(TONES)) if (names.includes(state)) return tone;
  return "plain";
}

/** A state in words, with a colour and its own mark. */
export function State({ state, title, tone }) {
  if (!state) return html`<span class="state good" title=${title}><i aria-hidden="true">●</i> ok</span>`;
  const found = tone ?? toneOf(state);
  return html`<span class=${`state ${found}`} title=${title}><i aria-hidden="true">${MARKS[found]}</i> ${words(state)}</span>`;
}

/** A name of the API as words. @param {string} name */
export const words = (name) => String(name ?? "").replaceAll("_", " ");

/** A button that is busy while its act runs. */
export function Button({ act, children, kind = "", disabled = false, title, label }) {
  const [busy, setBusy] = useState(false);
  const onClick = async (event) => {
    setBusy(true);
    try {
      await act(event);
    } finally {
      setBusy(false);
    }
  };
  return html`<button type="button" class=${kind} disabled=${disabled || busy} title=${title} aria-label=${label} onClick=${onClick}>
    ${children}
  </button>`;
}

/** A labelled field of a form. `children` is the input, and gets the id. */
export function Field({ id, label, hint, error, children }) {
  return html`<div class="field">
    <label for=${id}>${label}</label>
    ${children}
    ${hint ? html`<p class="hint" id=${`${id}-hint`}>${hint}</p>` : null}
    ${error ? html`<p class="error-text" role="alert">${error}</p>` : null}
  </div>`;
}

/** Copies a text, and says so. */
export function Copy({ text, children, kind = "quiet small" }) {
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    if (!copied) return undefined;
    const timer = setTimeout(() => setCopied(false), 1500);
    return () => clearTimeout(timer);
  }, [copied]);
  const onClick = async () => {
    await copy(text);
    setCopied(true);
  };
  return html`<button type="button" class=${kind} onClick=${onClick} title=${text}>
    ${copied ? "Copied" : children}
  </button>`;
}

/** @param {string} text */
async function copy(text) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return;
    } catch {
      // Pages without TLS have no clipboard. The older way works for them.
    }
  }
  const area = document.createElement("textarea");
  area.value = text;
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** The request of a list or an act, for other clients. */
export function Copies({ method = "GET", target, body, command }) {
  return html`<span class="copies">
    <${Copy} text=${curl(method, target, body)}>Copy as curl<//>
    ${command ? html`<${Copy} text=${command}>Copy as CLI<//>` : null}
  </span>`;
}

/** The text of an empty list, with what to do. */
export function Empty({ title, children }) {
  return html`<div class="empty"><p class="empty-title">${title}</p>${children ? html`<div>${children}</div>` : null}</div>`;
}

/** An error of the API in the place of what it prevents. */
export function Failure({ error, again }) {
  if (!error) return null;
  return html`<div class="failure" role="alert">
    <p>${error.message}</p>
    ${again ? html`<button type="button" class="small" onClick=${again}>Try again</button>` : null}
  </div>`;
}

/** While the first answer is awaited. */
export const Loading = () => html`<p class="loading" role="status">Loading…</p>`;

/** Facts as a list of terms. @param {{facts: [string, any, string?][]}} props */
export function Facts({ facts }) {
  return html`<dl class="facts">
    ${facts
      .filter((fact) => fact)
      .map(([term, value, title]) => html`<div><dt>${term}</dt><dd title=${title}>${value}</dd></div>`)}
  </dl>`;
}

/** One figure with its name. */
export function Figure({ label, value, unit, tone, href, children }) {
  const inner = html`<span class="figure-label">${label}</span>
    <span class=${`figure-value ${tone ?? ""}`}>${value}${unit ? html` <small>${unit}</small>` : null}</span>${children}`;
  return href ? html`<a class="figure" href=${href}>${inner}</a>` : html`<div class="figure">${inner}</div>`;
}

/** The heading of a view, with its place above it and its acts beside it. */
export function Heading({ title, trail = [], children, state }) {
  useEffect(() => {
    document.title = [title, ...trail.map(([name]) => name).reverse(), "Headrace"].join(" · ");
  }, [title, trail.length]);
  return html`<header class="heading">
    ${trail.length
      ? html`<nav class="trail" aria-label="Breadcrumb">${trail.map(([name, href]) => html`<a href=${href}>${name}</a><i aria-hidden="true">/</i>`)}</nav>`
      : null}
    <div class="heading-row">
      <h1 tabindex="-1">${title}</h1>
      ${state ?? null}
      <div class="acts">${children}</div>
    </div>
  </header>`;
}

/** A section with its own heading. */
export function Section({ title, id, acts, children }) {
  return html`<section class="section" aria-labelledby=${id}>
    <div class="section-head"><h2 id=${id}>${title}</h2>${acts ? html`<div class="acts">${acts}</div>` : null}</div>
    ${children}
  </section>`;
}

/** Scrolls a row of links, which may be wider than a phone, to the current one. @param {string | null} current */
export function useCurrentInSight(current) {
  const place = useRef(null);
  useEffect(() => {
    const row = place.current;
    const link = row?.querySelector("[aria-current]");
    // scrollIntoView would move the place from which the Tab key continues.
    if (link) row.scrollLeft += link.getBoundingClientRect().right - row.getBoundingClientRect().right;
  }, [current]);
  return place;
}

/** Tabs, each with an address. @param {{tabs: [string, string, number?][], current: string, href: (name: string) => string}} props */
export function Tabs({ tabs, current, href, label }) {
  const place = useCurrentInSight(current);
  return html`<nav class="tabs" ref=${place} aria-label=${label}>
    ${tabs.map(
      ([name, title, count]) => html`<a href=${href(name)} aria-current=${name === current ? "page" : undefined}>
        ${title}${count ? html` <span class="count">${count}</span>` : null}
      </a>`,
    )}
  </nav>`;
}

/** The progress of the backfills that are queued or running, the first ones of many. */
export function BackfillsUnderWay({ rows }) {
  if (!rows.length) return "–";
  return html`${rows.slice(0, 3).map((one) => html`<span class="progress" key=${one.id} title=${one.table}>
    ${one.done === null ? one.state : html`<progress max="1" value=${one.done} aria-label=${`Backfill of ${one.table}`}></progress> ${Math.round(one.done * 100)} %`}</span> `)}
    ${rows.length > 3 ? `and ${number(rows.length - 3)} more` : null}`;
}
