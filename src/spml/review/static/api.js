// Requests to the server. Answers are queued, kept in the browser until the server has them, and sent again if needed.

import { store, stored } from "./dom.js";

export class ServerError extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

async function request(path, options) {
  let reply;
  try {
    reply = await fetch(path, options);
  } catch {
    throw new ServerError(0, "The server does not answer.");
  }
  if (reply.status === 404) throw new ServerError(404, "The server was restarted: open the address that it prints now.");
  const content = await reply.json().catch(() => ({}));
  if (!reply.ok) throw new ServerError(reply.status, content.error || `The server replied ${reply.status}.`);
  return content;
}

export const get = (path) => request(path, { cache: "no-store" });

export const post = (path, body) =>
  request(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });

const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");

export class Outbox {
  // saved(reply, action) after each action; problem(message or null) when saving fails or works again.
  constructor(subject, { saved, problem, prepare = (action) => action.body }) {
    this.prefix = `spml-unsent-${subject}-`;
    this.key = this.prefix + newId();
    this.saved = saved;
    this.problem = problem;
    this.prepare = prepare;
    this.queue = [];
    this.sending = false;
    this.wait = 500;
    this.adopt();
  }

  adopt() { // what an earlier page could not send
    for (const key of Object.keys(localStorage).filter((name) => name.startsWith(this.prefix) && name !== this.key)) {
      try { this.queue.push(...JSON.parse(stored(key, "[]"))); } catch { /* damaged: nothing to send */ }
      store(key, null);
    }
    if (this.queue.length) { this.keep(); this.send(); }
  }

  add(path, body) {
    const action = { path, body: { ...body, request: newId() } };
    this.queue.push(action);
    this.keep();
    this.send();
    return action;
  }

  keep() { store(this.key, this.queue.length ? JSON.stringify(this.queue) : null); }

  async send() {
    if (this.sending) return;
    this.sending = true;
    while (this.queue.length) {
      const action = this.queue[0];
      try {
        const reply = await post(action.path, this.prepare(action));
        this.queue.shift();
        this.keep();
        this.wait = 500;
        this.problem(null);
        this.saved(reply, action);
      } catch (error) {
        if (error instanceof ServerError && error.status === 400) { // never valid: drop it
          this.queue.shift();
          this.keep();
          this.problem(`An answer was refused: ${error.message}`);
          this.saved(null, action);
          continue;
        }
        this.problem(`${error.message.replace(/\.?$/, ".")} Unsaved answers: ${this.queue.length}. They are kept in this browser and sent again.`);
        await new Promise((done) => setTimeout(done, this.wait));
        this.wait = Math.min(2 * this.wait, 8000);
      }
    }
    this.sending = false;
  }
}
