// The table of requests in flight, from /debug/requests.

import { count, percent, seconds } from "./format.js";

const MOST = 50;

export class RequestTable {
  constructor(table, note) {
    this.rows = table.tBodies[0];
    this.note = note;
  }

  show({ summary, data }) {
    const parts = [`${summary.num_running} running`, `${summary.num_waiting} waiting`];
    const reasons = Object.entries(summary.waiting_by_reason).map(([reason, number]) => `${number} ${reason}`);
    if (reasons.length) parts[1] += ` (${reasons.join(", ")})`;
    parts.push(`KV ${percent(summary.kv_cache_usage)}`);
    parts.push(`a new request would wait ${seconds(summary.predicted_queue_wait_seconds)}`);
    if (data.length > MOST) parts.push(`the oldest ${MOST} of ${data.length} are shown`);
    this.note.textContent = parts.join(" · ");
    this.rows.replaceChildren(...data.slice(0, MOST).map(row));
  }

  // Nothing to show, and why.
  clear(text) {
    this.note.textContent = text;
    this.rows.replaceChildren();
  }
}

// What it waits for, or else, in brackets, what it has waited for last.
function why({ wait, last_wait: last }) {
  if (wait) return `${wait.reason} ${seconds(wait.seconds)}`;
  return last ? `(${last.reason} ${seconds(last.seconds)})` : "";
}

function row(request) {
  const made = document.createElement("tr");
  const limit = request.choices.length * request.max_tokens;
  const optional = (value, show) => (value === null ? "–" : show(value));
  const cells = [
    [request.id],
    [request.state],
    [why(request)],
    [seconds(request.age_seconds), true],
    [count(request.prompt_tokens), true],
    [count(request.cached_tokens), true],
    [`${count(request.output_tokens)} / ${count(limit)}`, true],
    [optional(request.tokens_per_second, count), true],
    [optional(request.time_to_first_token_seconds, seconds), true],
    [count(request.num_preemptions), true],
    [request.tenant],
  ];
  for (const [text, isNumber] of cells) {
    const cell = made.insertCell();
    cell.textContent = text;
    if (isNumber) cell.className = "number";
  }
  return made;
}
