// Which charts there are, and what they show of two or more snapshots of the metrics.

import { Chart } from "./chart.js";
import { count, percent, seconds } from "./format.js";
import { quantile, rate } from "./metrics.js";

const QUANTILE_SECONDS = 10; // quantiles of one second would be of very few requests

export class Charts {
  constructor(host) {
    this.snapshots = [];
    this.tokens = new Chart(host, { title: "Tokens per second", lines: ["output", "prompt"], show: count });
    this.requests = new Chart(host, { title: "Requests", lines: ["running", "waiting"], show: count });
    this.kv = new Chart(host, { title: "KV cache", lines: ["used"], show: percent, most: 1 });
    this.waits = new Chart(host, { title: "Waits, p95 of 10 s", lines: ["first token", "queue"], show: seconds });
  }

  push(now) {
    const last = this.snapshots.at(-1);
    this.snapshots = this.snapshots.filter((one) => one.seconds >= now.seconds - QUANTILE_SECONDS - 0.5);
    const before = this.snapshots[0] ?? last ?? now;
    this.snapshots.push(now);
    const time = now.seconds;
    this.requests.push(time, [now.value("num_requests_running"), now.value("num_requests_waiting")]);
    this.kv.push(time, [now.value("kv_cache_usage_perc")]);
    if (!last) return;
    this.tokens.push(time, [rate(last, now, "generation_tokens_total"), rate(last, now, "prompt_tokens_total")]);
    const p95 = (name) => quantile(before, now, name, 0.95);
    this.waits.push(time, [p95("time_to_first_token_seconds"), p95("request_queue_time_seconds")]);
  }
}
