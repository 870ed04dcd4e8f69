// Prometheus text as numbers: what a server has counted at one moment, and what happened between two of them.
// Any prefix will do; samples of several engines are added up.

const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?\s+(\S+)/;
const BOUND = /(?:^|,)\s*le="([^"]*)"/;
const LANDMARK = "num_requests_running";

export class Snapshot {
  // `seconds`: on any clock, the same for all snapshots.
  constructor(text, seconds) {
    this.seconds = seconds;
    this.values = new Map();
    this.buckets = new Map();
    const samples = text.split("\n").map((line) => SAMPLE.exec(line)).filter(Boolean);
    const landmark = samples.find(([, name]) => name.endsWith(LANDMARK));
    const prefix = landmark ? landmark[1].slice(0, -LANDMARK.length) : "";
    for (const [, fullName, labels = "", number] of samples) {
      const name = fullName.startsWith(prefix) ? fullName.slice(prefix.length) : fullName;
      const bound = name.endsWith("_bucket") && BOUND.exec(labels);
      if (bound) this.#addBucket(name.slice(0, -"_bucket".length), toNumber(bound[1]), Number(number));
      else this.values.set(name, (this.values.get(name) ?? 0) + toNumber(number));
    }
  }

  value(name) {
    return this.values.get(name) ?? NaN;
  }

  #addBucket(name, bound, count) {
    if (!this.buckets.has(name)) this.buckets.set(name, new Map());
    const buckets = this.buckets.get(name);
    buckets.set(bound, (buckets.get(bound) ?? 0) + count);
  }
}

// How much a counter grows in a second; NaN where it fell, since then the server is another one.
export function rate(before, now, name) {
  const grown = now.value(name) - before.value(name);
  return grown < 0 ? NaN : grown / (now.seconds - before.seconds);
}

// The value that a share `q` of what was observed in between does not exceed, straight between the bounds of its
// bucket; NaN if nothing was observed.
export function quantile(before, now, name, q) {
  const earlier = before.buckets.get(name) ?? new Map();
  const grown = [...(now.buckets.get(name) ?? [])]
    .map(([bound, count]) => [bound, count - (earlier.get(bound) ?? 0)])
    .sort(([a], [b]) => a - b);
  const total = grown.length ? grown.at(-1)[1] : 0;
  if (!(total > 0)) return NaN;
  let [lower, below] = [0, 0];
  for (const [bound, count] of grown) {
    if (count >= q * total) {
      if (bound === Infinity) return lower;
      return lower + ((bound - lower) * (q * total - below)) / (count - below);
    }
    [lower, below] = [bound, count];
  }
  return lower;
}

function toNumber(text) {
  return text === "+Inf" ? Infinity : text === "-Inf" ? -Infinity : Number(text);
}
