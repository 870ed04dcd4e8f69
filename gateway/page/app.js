// The page put together: the key, the chat, and once a second, while somebody can see it, what the server does.

import { apiKey, ask, keepKey } from "./api.js";
import { Charts } from "./charts.js";
import { Chat } from "./chat.js";
import { Snapshot } from "./metrics.js";
import { RequestTable } from "./requests.js";

const PERIOD = 1000;
const byId = (id) => document.getElementById(id);

const chat = new Chat();
const charts = new Charts(byId("charts"));
const table = new RequestTable(byId("requests"), byId("requests-note"));
let models = [];
let refused = new Map(); // path → why; not asked again with the same key

function tell(text, isBad = false) {
  if (byId("state").textContent !== text) byId("state").textContent = text;
  byId("state").classList.toggle("bad", isBad);
}

// Throws what went wrong; of a path that the key does not open, the same each time.
async function askAllowed(path) {
  if (refused.has(path)) throw refused.get(path);
  try {
    return await ask(path);
  } catch (error) {
    if (error.status === 401 || error.status === 403) refused.set(path, error);
    throw error;
  }
}

async function showModels() {
  if (models.length) return;
  models = (await (await askAllowed("v1/models")).json()).data.map((model) => model.id);
  chat.setModels(models);
}

async function showMetrics() {
  const text = await (await askAllowed("metrics")).text();
  charts.push(new Snapshot(text, performance.now() / 1000));
}

async function showRequests() {
  table.show(await (await askAllowed("debug/requests")).json());
}

async function tick() {
  const [model, metrics, requests] = await Promise.allSettled([showModels(), showMetrics(), showRequests()]);
  if (requests.reason) table.clear(requests.reason.message);
  const problem = model.reason ?? metrics.reason;
  if (problem) tell(problem.message, true);
  else tell(`serving ${models.join(", ")}`);
}

async function watch() {
  for (;;) {
    if (document.hidden) {
      await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
      continue;
    }
    const started = performance.now();
    await tick();
    await new Promise((resolve) => setTimeout(resolve, Math.max(0, PERIOD - (performance.now() - started))));
  }
}

byId("key").value = apiKey();
byId("keys").addEventListener("submit", (event) => event.preventDefault());
byId("key").addEventListener("change", () => {
  keepKey(byId("key").value.trim());
  refused = new Map();
  models = [];
});
byId("question").focus();
watch();
