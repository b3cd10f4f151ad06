/** Addresses of views. Each view and each filter has one, so that it can be shared. */

import { useEffect, useState } from "../vendor/preact.js";

const BASE = new URL(document.baseURI).pathname;
const changes = new EventTarget();

/** The path below the console's root, without a slash at its end, and the query. */
export function here() {
  const below = location.pathname.startsWith(BASE) ? location.pathname.slice(BASE.length) : "";
  return { path: below.replace(/\/$/, ""), query: new URLSearchParams(location.search) };
}

/**
 * Goes to a view.
 * @param {string} target path and query below the console's root
 * @param {{replace?: boolean}} [options] `replace`: without an entry in the browser's history
 */
export function go(target, { replace = false } = {}) {
  const url = new URL(target, document.baseURI);
  if (url.href === location.href) return;
  history[replace ? "replaceState" : "pushState"](null, "", url);
  changes.dispatchEvent(new Event("change"));
}

/** The address, and changes of it. */
export function useAddress() {
  const [address, setAddress] = useState(here);
  useEffect(() => {
    const onChange = () => setAddress(here());
    changes.addEventListener("change", onChange);
    addEventListener("popstate", onChange);
    return () => {
      changes.removeEventListener("change", onChange);
      removeEventListener("popstate", onChange);
    };
  }, []);
  return address;
}

/**
 * The filters of a view, which are in the query string. A change keeps the others.
 * @param {Record<string, string>} defaults
 * @returns {[Record<string, string>, (change: Record<string, unknown>, options?: {replace?: boolean}) => void]}
 */
export function useFilters(defaults) {
  const { path, query } = useAddress();
  const values = { ...defaults };
  for (const name of Object.keys(defaults)) values[name] = query.get(name) ?? defaults[name];
  const change = (changed, options) => {
    const next = here().query;
    for (const [name, value] of Object.entries(changed)) {
      if (value === null || value === undefined || String(value) === (defaults[name] ?? "")) next.delete(name);
      else next.set(name, String(value));
    }
    const text = next.toString();
    go(path + (text ? `?${text}` : "") || "./", options);
  };
  return [values, change];
}

/** Lets links of the console change the view without reloading the page. */
export function followLinks() {
  addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const link = event.target instanceof Element ? event.target.closest("a[href]") : null;
    if (!link || link.target || link.hasAttribute("download") || link.hasAttribute("data-native")) return;
    const url = new URL(link.href);
    if (url.origin !== location.origin || !url.pathname.startsWith(BASE)) return;
    event.preventDefault();
    go(url.href);
  });
}

/** The address of a stream, a consumer or a message. @param {string} stream */
export const streamAt = (stream) => `streams/${encodeURIComponent(stream)}`;

/** @param {string} stream @param {string} consumer */
export const consumerAt = (stream, consumer) => `${streamAt(stream)}/consumers/${encodeURIComponent(consumer)}`;

/** @param {string} stream @param {number} seq */
export const messageAt = (stream, seq) => `${streamAt(stream)}/messages/${seq}`;

/** @param {string} source */
export const sourceAt = (source) => `sources/${encodeURIComponent(source)}`;

/** @param {string} stream @param {string} schedule */
export const scheduleAt = (stream, schedule) => `schedules/${encodeURIComponent(stream)}/${encodeURIComponent(schedule)}`;
