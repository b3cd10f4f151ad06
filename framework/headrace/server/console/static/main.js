/** The console begins here. */

import { html, render } from "./vendor/preact.js";
import { followLinks } from "./shared/router.js";
import { Shell } from "./shell.js";

followLinks();
render(html`<${Shell} />`, document.getElementById("app"));
