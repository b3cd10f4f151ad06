/** Signing in with an access token. */

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { post } from "../shared/api.js";
import { go, here } from "../shared/router.js";
import { Failure, Field } from "../shared/ui.js";

export default function SignIn({ signedIn, me }) {
  const [token, setToken] = useState("");
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const input = useRef(null);
  useEffect(() => {
    document.title = "Sign in · Headrace";
    input.current?.focus();
  }, []);
  const onSubmit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await post("session", { token: token.trim() });
      setToken("");
      if (here().path === "sign-in") go("./", { replace: true });
      await signedIn();
    } catch (problem) {
      setError(problem);
    }
    setBusy(false);
  };
  return html`<main class="alone">
    <form class="card sign-in" onSubmit=${onSubmit}>
      <img src=${`${document.body.dataset.files}icon.svg`} alt="" width="40" height="40" />
      <h1>Sign in to Headrace</h1>
      ${me ? html`<p>You are signed in as <strong>${me.name}</strong>. A new token takes its place.</p>` : null}
      <input type="text" autocomplete="username" value="headrace" hidden readonly />
      <${Field} id="token" label="Access token" hint="It begins with hr_. The browser keeps a session, and not the token.">
        <input
          id="token" ref=${input} type="password" autocomplete="current-password" required aria-describedby="token-hint"
          value=${token} onInput=${(event) => setToken(event.target.value)}
        />
      <//>
      <${Failure} error=${error} />
      <button type="submit" class="primary" disabled=${busy || !token.trim()}>Sign in</button>
      <p class="hint">You have none? An operator makes one with <code>headrace token add NAME --scope admin</code>.</p>
    </form>
  </main>`;
}
