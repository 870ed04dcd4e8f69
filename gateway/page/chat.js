// The chat: one conversation, answers as they are streamed, and a way to stop them.

import { ServerError, ask, events } from "./api.js";
import { seconds } from "./format.js";

const byId = (id) => document.getElementById(id);

export class Chat {
  constructor() {
    this.turns = []; // as the API wants them; a failed turn leaves no trace
    this.stopping = null;
    byId("chat").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    byId("question").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.send();
    });
    byId("stop").addEventListener("click", () => this.stopping?.abort());
    byId("forget").addEventListener("click", () => this.forget());
  }

  setModels(names) {
    const select = byId("model");
    if (names.join("\n") === [...select.options].map((option) => option.value).join("\n")) return;
    select.replaceChildren(...names.map((name) => new Option(name, name)));
  }

  forget() {
    this.stopping?.abort();
    this.turns = [];
    byId("log").replaceChildren();
    byId("question").focus();
  }

  async send() {
    const question = byId("question").value.trim();
    if (!question || this.stopping) return;
    byId("question").value = "";
    this.#show("user").textContent = question;
    const answer = new Answer(this.#show("assistant"));
    const turns = (this.turns = [...this.turns, { role: "user", content: question }]);
    this.#begin();
    try {
      await answer.read(await this.#ask());
    } catch (error) {
      answer.fail(error);
    }
    this.#end();
    if (this.turns !== turns) return; // forgotten meanwhile
    this.turns = answer.text
      ? [...turns, { role: "assistant", content: answer.text }]
      : turns.slice(0, -1);
  }

  #ask() {
    const body = {
      messages: this.turns,
      stream: true,
      stream_options: { include_usage: true },
    };
    const [model, temperature, maxTokens] = ["model", "temperature", "max-tokens"].map((id) => byId(id).value);
    if (model) body.model = model;
    if (temperature !== "") body.temperature = Number(temperature);
    if (maxTokens !== "") body.max_completion_tokens = Number(maxTokens);
    return ask("v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal: this.stopping.signal,
    });
  }

  #begin() {
    this.stopping = new AbortController();
    byId("send").disabled = true;
    byId("stop").disabled = false;
    byId("log").setAttribute("aria-busy", "true");
  }

  #end() {
    this.stopping = null;
    byId("send").disabled = false;
    byId("stop").disabled = true;
    byId("log").removeAttribute("aria-busy");
  }

  #show(role) {
    const turn = document.createElement("div");
    turn.className = `turn ${role}`;
    byId("log").append(turn);
    turn.scrollIntoView({ block: "nearest" });
    return turn;
  }
}

class Answer {
  constructor(host) {
    this.text = "";
    this.started = performance.now();
    this.first = null;
    this.thought = host.appendChild(element("span", "thought"));
    this.shown = host.appendChild(element("span", "said"));
    this.note = host.appendChild(element("span", "note"));
  }

  async read(response) {
    let reason = null;
    let usage = null;
    for await (const data of events(response)) {
      if (data === "[DONE]") return this.#finish(reason, usage);
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ServerError(chunk.error.message, 200);
      usage = chunk.usage ?? usage;
      for (const { delta, finish_reason: finish } of chunk.choices) {
        reason = finish ?? reason;
        this.#add(delta);
      }
    }
    throw new ServerError("the connection broke", 0);
  }

  #add({ content, reasoning }) {
    if (!content && !reasoning) return;
    const log = this.shown.closest("#log");
    const isAtEnd = log && log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    this.first ??= performance.now();
    if (reasoning) this.thought.append(reasoning);
    if (content) {
      this.text += content;
      this.shown.append(content);
    }
    if (isAtEnd) log.scrollTop = log.scrollHeight;
  }

  #finish(reason, usage) {
    const parts = [];
    if (usage) {
      const numTokens = usage.completion_tokens;
      parts.push(`${numTokens} tokens`);
      if (this.first !== null) {
        const took = (performance.now() - this.first) / 1000;
        if (numTokens > 1 && took > 0) parts.push(`${((numTokens - 1) / took).toFixed(0)} tokens/s`);
        parts.push(`first after ${seconds((this.first - this.started) / 1000)}`);
      }
    }
    if (reason && reason !== "stop") parts.push(reason === "length" ? "cut at max tokens" : reason);
    this.note.textContent = parts.join(" · ");
  }

  fail(error) {
    const isStopped = error.name === "AbortError";
    this.note.textContent = isStopped ? "stopped" : error.message;
    this.note.classList.toggle("bad", !isStopped);
  }
}

function element(kind, className) {
  const made = document.createElement(kind);
  made.className = className;
  return made;
}
