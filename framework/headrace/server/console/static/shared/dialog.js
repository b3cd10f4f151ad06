/** Dialogs: one at a time, with the browser's own focus trap. An act says what it will do before it is done. */

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { Copies, Failure } from "./ui.js";

const changes = new EventTarget();
let current = null;

/** Shows a dialog. `content` is a component that gets `close`. @param {any} content @param {any} [props] */
export function open(content, props = {}) {
  current = { content, props };
  changes.dispatchEvent(new Event("change"));
}

export function close() {
  if (!current) return;
  current = null;
  document.querySelector("dialog[open]")?.close(); // gives the focus back to where it was
  changes.dispatchEvent(new Event("change"));
}

/** The place of the dialog in the page. */
export function DialogPlace() {
  const [, draw] = useState(0);
  const element = useRef(null);
  useEffect(() => {
    let round = 0;
    const onChange = () => draw((round += 1));
    changes.addEventListener("change", onChange);
    return () => changes.removeEventListener("change", onChange);
  }, []);
  useEffect(() => {
    const dialog = element.current;
    if (current && dialog && !dialog.open) dialog.showModal();
  });
  if (!current) return null;
  const Content = current.content;
  return html`<dialog ref=${element} onClose=${close} aria-labelledby="dialog-title" onClick=${(event) => event.target === element.current && close()}>
    <div class="dialog-body"><${Content} ...${current.props} close=${close} /></div>
  </dialog>`;
}

/**
 * The frame of an act: what will happen, the fields, the request for other clients, and the buttons.
 * @param {{title: string, act: () => Promise<any>, done?: (result: any) => void, verb: string, danger?: boolean, ready?: boolean, stays?: boolean,
 *   request?: {method: string, target: string, body?: unknown, command?: string}, children: any, close: () => void}} props
 *   `stays`: the dialog stays open, since `done` shows something in it
 */
export function Act({ title, act, done, verb, danger = false, ready = true, stays = false, request, children, close }) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    if (busy || !ready) return;
    setBusy(true);
    setError(null);
    try {
      const result = await act();
      if (!stays) close();
      done?.(result);
    } catch (problem) {
      setError(problem);
      setBusy(false);
    }
  };
  return html`<form class="act" onSubmit=${submit}>
    <h2 id="dialog-title">${title}</h2>
    <div class="act-content">${children}</div>
    <${Failure} error=${error} />
    ${request ? html`<${Copies} ...${request} />` : null}
    <div class="act-buttons">
      <button type="button" onClick=${close}>Cancel</button>
      <button type="submit" class=${danger ? "danger" : "primary"} disabled=${busy || !ready}>${busy ? "…" : verb}</button>
    </div>
  </form>`;
}

const notices = new EventTarget();

/** Says at the edge of the page what was done. @param {string} text @param {string} [href] */
export function say(text, href) {
  notices.dispatchEvent(new CustomEvent("notice", { detail: { text, href } }));
}

/** The place of what is said. */
export function NoticePlace() {
  const [notice, setNotice] = useState(null);
  useEffect(() => {
    let timer = 0;
    const onNotice = (event) => {
      clearTimeout(timer);
      setNotice(event.detail);
      timer = setTimeout(() => setNotice(null), 8000);
    };
    notices.addEventListener("notice", onNotice);
    return () => {
      clearTimeout(timer);
      notices.removeEventListener("notice", onNotice);
    };
  }, []);
  return html`<div class="notices" role="status" aria-live="polite">
    ${notice
      ? html`<div class="notice">
          <span>${notice.text}</span>
          ${notice.href ? html`<a href=${notice.href}>Show</a>` : null}
          <button type="button" class="quiet small" onClick=${() => setNotice(null)}>Dismiss</button>
        </div>`
      : null}
  </div>`;
}
