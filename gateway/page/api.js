// Talks to the server that this page came from. Owns the API key, which never leaves this tab's session.

const KEY = "octavo-key";

export function apiKey() {
  return sessionStorage.getItem(KEY) ?? "";
}

export function keepKey(value) {
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
}

// `status` is 0 where there was no answer.
export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

// The response, if it is a good one. Throws ServerError; an abort stays what it is.
export async function ask(path, options = {}) {
  const headers = new Headers(options.headers);
  if (apiKey()) headers.set("Authorization", `Bearer ${apiKey()}`);
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("the server does not answer", 0);
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  let message = `the server answered ${response.status}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // Not from octavo: the status has to do.
  }
  const wait = response.headers.get("Retry-After");
  return new ServerError(wait ? `${message} (try again in ${wait} s)` : message, response.status);
}

// The data of each server-sent event of a response, in order.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let unread = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (unread + value).split(/\r?\n\r?\n/);
    unread = blocks.pop();
    for (const block of blocks) {
      const lines = block.split(/\r?\n/).filter((line) => line.startsWith("data:"));
      if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
    }
  }
}
