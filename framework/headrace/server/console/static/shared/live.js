/** Polling. Each view asks once a second with an ETag, and the server answers everybody from one snapshot. It pauses while
 * the tab is hidden, and backs off while the server doesn't answer. The last answer stays. */

import { useEffect, useRef, useState } from "../vendor/preact.js";
import { request } from "./api.js";

const INTERVAL = 1000;
const LONGEST = 15_000;

/**
 * @template T
 * @typedef {{data: T | undefined, error: import("./api.js").ApiError | null, at: number, again: () => void}} Polled
 * `at` is when the server was last heard, in milliseconds. `again` asks immediately.
 */

/** Requests made before a view polls them: promises of the answers, and the answers received. */
const begun = new Map();

/**
 * Asks for a path before the view that polls it is there. It is resolved when the answer has come, or none.
 * @param {string} target
 */
export async function begin(target) {
  const asked = { promise: request("GET", target), answer: null };
  begun.set(target, asked);
  try {
    asked.answer = await asked.promise;
  } catch {
    begun.delete(target); // the view asks again, and shows the error
  }
}

/**
 * Polls a path. Without a path it does nothing.
 * @param {string | null} target
 * @param {number} [interval] milliseconds
 * @returns {Polled<any>}
 */
export function useLive(target, interval = INTERVAL) {
  const [state, setState] = useState(() => {
    const answer = begun.get(target)?.answer;
    return { target, data: answer?.body, error: null, at: answer ? Date.now() : 0 };
  });
  const again = useRef(() => {});
  useEffect(() => {
    if (target === null) return undefined;
    const poller = poll(target, interval, setState);
    again.current = poller.again;
    return poller.stop;
  }, [target, interval]);
  // The state of another path is of no use to the view, except as a placeholder of the same shape.
  return { ...state, stale: state.target !== target, again: () => again.current() };
}

/**
 * @param {string} target
 * @param {number} interval
 * @param {(change: any) => void} setState
 */
function poll(target, interval, setState) {
  let etag = null;
  let failures = 0;
  let timer = 0;
  let running = false;
  const aborting = new AbortController();

  async function ask(polled = true) {
    timer = 0;
    if (running) return;
    running = true;
    try {
      const early = begun.get(target)?.promise;
      begun.delete(target);
      const answer = await (early ?? request("GET", target, { etag: etag ?? undefined, signal: aborting.signal, poll: polled }));
      failures = 0;
      etag = answer.etag;
      const at = Date.now();
      if (answer.status === 304) setState((old) => (old.error ? { ...old, error: null, at } : Object.assign(old, { at })));
      else setState((old) => (old.data === answer.body ? Object.assign(old, { at }) : { target, data: answer.body, error: null, at }));
    } catch (error) {
      if (aborting.signal.aborted) return;
      failures += 1;
      if (error.status === 429 && polled) {
        failures = 1; // many screens are open, so what was read stays for a while
        return;
      }
      setState((old) => ({ ...old, target, data: old.target === target ? old.data : undefined, error }));
    } finally {
      running = false;
      plan();
    }
  }

  function plan() {
    if (aborting.signal.aborted || document.hidden || timer) return;
    timer = setTimeout(ask, Math.min(interval * 2 ** Math.min(failures, 5), Math.max(LONGEST, interval)));
  }

  function onVisibility() {
    if (document.hidden) {
      clearTimeout(timer);
      timer = 0;
    } else {
      again();
    }
  }

  function again() {
    clearTimeout(timer);
    ask(false);
  }

  document.addEventListener("visibilitychange", onVisibility);
  if (!document.hidden || etag === null) ask(false);
  return {
    again,
    stop() {
      aborting.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", onVisibility);
    },
  };
}

/**
 * The last value that was known, for what the server leaves out while its database is away.
 * @template T
 * @param {T | null | undefined} value
 * @returns {T | undefined}
 */
export function useKept(value) {
  const kept = useRef(undefined);
  if (value !== null && value !== undefined) kept.current = value;
  return kept.current;
}

/**
 * Reads a path once, and again when it or `key` changes.
 * @param {string | null} target
 * @param {unknown} [key]
 * @param {boolean} [poll] whether it was shown before, and may wait
 */
export function useRead(target, key = 0, poll = false) {
  const [state, setState] = useState({ target: "", data: undefined, error: null, loading: true });
  const [round, setRound] = useState(0);
  useEffect(() => {
    if (target === null) return undefined;
    const aborting = new AbortController();
    setState((old) => ({ ...old, loading: true }));
    request("GET", target, { signal: aborting.signal, poll }).then(
      (answer) => setState({ target, data: answer.body, error: null, loading: false }),
      (error) => {
        if (!aborting.signal.aborted) {
          setState((old) => ({ target, data: old.target === target ? old.data : undefined, error, loading: false }));
        }
      },
    );
    return () => aborting.abort();
  }, [target, key, round]);
  return { ...state, again: () => setRound(round + 1) };
}
