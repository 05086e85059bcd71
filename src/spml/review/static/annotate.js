// The page of `spml annotate`: one yes/no question at a time.

import { Outbox, get } from "./api.js";
import { $, count, el, fit, isTyping, setUpTheme, store, stored } from "./dom.js";

const KEYS = { y: 1, n: -1, u: 0 };
const client = Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16)).join("");
const state = { overview: null, question: null, busy: false };
let outbox;

const who = () => $("who").value.trim() || state.overview.who || "anonymous";

function problem(text) {
  $("alert").hidden = !text;
  $("alert").textContent = text ?? "";
}

function show({ question, name, progress }) {
  state.question = question;
  state.busy = false;
  $("progress").textContent = `${progress.done.toLocaleString("en")} of ${count(progress.rows, "image")} · ${count(progress.answers, "answer")}`;
  $("bar").value = progress.done / progress.rows;
  for (const id of ["yes", "no", "unknown"]) $(id).disabled = !question;
  if (!question) {
    $("row-content").replaceChildren(el("p", { class: "words" }, "All images are done. Stop the server with Ctrl-C: it writes the table."));
    $("question").textContent = "Finished";
    $("row-name").textContent = "";
    return;
  }
  const source = `images/${question.row}`;
  if ($("row-content").querySelector("img")?.getAttribute("src") !== source) {
    const image = el("img", { src: source, alt: name });
    image.addEventListener("load", () => fit(image));
    image.addEventListener("error", () => image.replaceWith(el("p", { class: "words" }, "This image cannot be read: answer “cannot tell”.")));
    $("row-content").replaceChildren(image);
  }
  $("row-name").textContent = name;
  $("question").replaceChildren("Does this image show ", el("em", {}, state.overview.classes[question.label]), "?");
  if (question.next !== null) new Image().src = `images/${question.next}`;
}

function answer(value) {
  if (state.busy || !state.question) return;
  state.busy = true;
  const { row, label, draw } = state.question;
  outbox.add("api/answers", { who: who(), client, question: { row, label, draw }, answer: value });
}

function undo() {
  if (state.busy) return;
  state.busy = true;
  outbox.add("api/undo", { who: who(), client });
}

async function start() {
  const flip = setUpTheme($("theme"));
  state.overview = await get("api/overview");
  $("who").value = stored("spml-who", state.overview.who);
  $("who").addEventListener("change", () => store("spml-who", $("who").value.trim() || null));
  const next = async () => show(await get(`api/question?client=${client}`));
  outbox = new Outbox(state.overview.subject, { problem, saved: (reply) => { if (reply) show(reply); else next(); } });
  for (const [id, value] of [["yes", 1], ["no", -1], ["unknown", 0]]) $(id).addEventListener("click", () => answer(value));
  $("undo").addEventListener("click", undo);
  document.addEventListener("keydown", (event) => {
    if (isTyping(event)) return;
    const key = event.key.toLowerCase();
    if (key in KEYS) answer(KEYS[key]);
    else if (key === "z") undo();
    else if (key === "t") flip();
  });
  if (!outbox.queue.length) await next();
  document.body.dataset.ready = "true";
}

start().catch((error) => problem(error.message));
