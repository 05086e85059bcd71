// The page of `spml review`.

import { Outbox, ServerError, get } from "./api.js";
import { $, content, count, el, estimate, fit, isTyping, percent, setUpTheme, store, stored } from "./dom.js";
import { Grid } from "./grid.js";

const ANSWER = { y: 1, n: -1, u: 0 };
const WORD = { 1: "yes", "-1": "no", 0: "cannot tell" };
const ASKS = { image: "Does it show", text: "Is it about", row: "Is it" };
const POLL = 3000;
const MOST_UNDONE = 200; // actions whose place in the grid is kept
const FEW = 10; // answers, of which at most one corrected a label

const state = { overview: null, label: 0, view: "label", known: new Map(), own: new Map(), rows: [], at: 0, row: null, focus: 0, evidence: false,
  past: [], screen: 0, asked: new Map(), finished: new Set() };
let outbox, grid;

// Decisions, by row and label

const keyOf = (row, label) => row * state.overview.classes.length + label;
const decisionOn = (row, label) => state.known.get(keyOf(row, label)) ?? null;

function learn([id, row, label, answer, who]) {
  const key = keyOf(row, label);
  const before = state.known.get(key);
  if (before && before.id > id) return;
  if (before?.waiting && before.who === who && before.answer !== answer) return; // a newer answer is on its way
  if (answer === null) state.known.set(key, { id, answer: null, who }); else state.known.set(key, { id, answer, who });
  state.overview.last = Math.max(state.overview.last, id);
}

const answered = (row, label) => {
  const decision = decisionOn(row, label);
  return decision && decision.answer !== null ? decision : null;
};

function answer(pairs, value) {
  if (!pairs.length) return;
  const items = pairs.map(([row, label]) => ({ row, label, answer: value, seen: decisionOn(row, label)?.id ?? 0 }));
  for (const { row, label, seen } of items) state.known.set(keyOf(row, label), { id: seen, answer: value, who: who(), waiting: true });
  outbox.add("api/answers", { who: who(), items });
  toast(`${count(pairs.length, "answer")}: ${WORD[value]}`, false);
}

function undo() { outbox.add("api/undo", { who: who() }); }

const noun = () => (["image", "text"].includes(state.overview.kind) ? state.overview.kind : "row");

// Rows of tables without ids are named by their number.
const called = (name) => (state.overview.kind !== "image" && /^\d+$/.test(name) ? `Row ${name}` : name);

const who = () => $("who").value.trim() || state.overview.who || "anonymous";

// An own answer that was saved after the click is known by the time the next one is sent.
function withOwnAnswers(action) {
  if (!action.body.items) return action.body;
  const items = action.body.items.map((item) => ({ ...item, seen: Math.max(item.seen, state.own.get(keyOf(item.row, item.label)) ?? 0) }));
  return { ...action.body, items };
}

function saved(reply, action) {
  for (const item of action.body.items ?? []) {
    const decision = decisionOn(item.row, item.label);
    if (decision?.waiting && decision.answer === item.answer) decision.waiting = false;
  }
  if (!reply) return loadLabel();
  for (const decision of reply.saved) {
    state.own.set(keyOf(decision[1], decision[2]), decision[0]);
    learn(decision);
  }
  if (reply.conflicts.length) {
    for (const [id, row, label, value, person] of reply.conflicts) state.known.set(keyOf(row, label), { id, answer: value, who: person });
    const [, , label, value, person] = reply.conflicts[0];
    notice(`${count(reply.conflicts.length, "answer")} not saved, because ${person} answered before you (${state.overview.classes[label]}: ${WORD[value]}). Answer again to change that.`);
  }
  if (action.path === "api/undo") {
    toast(undone(reply.saved), true);
    restoreGrid(reply.saved);
  }
  Object.assign(state.overview, reply.progress);
  showProgress();
  refresh();
}

// What the page shows

// A message that goes away by itself; screen readers always read it.
let toastTimer;
function toast(text, visible) {
  clearTimeout(toastTimer);
  $("toast").textContent = text;
  $("toast").classList.toggle("spoken", !visible);
  toastTimer = setTimeout(() => { $("toast").textContent = ""; $("toast").classList.add("spoken"); }, 4000);
}

function undone(decisions) {
  if (!decisions.length) return "There is nothing to undo.";
  const labels = new Set(decisions.map(([, , label]) => label));
  const what = labels.size > 1 ? count(labels.size, "label") : state.overview.classes[decisions[0][2]];
  return `Undone: ${count(decisions.length, "answer")} (${what})`;
}

let noticeTimer;
function notice(text) {
  clearTimeout(noticeTimer);
  const box = $("alert");
  box.className = "alert note";
  box.textContent = text;
  box.hidden = false;
  noticeTimer = setTimeout(() => { if (box.classList.contains("note")) box.hidden = true; }, 9000);
}

function problem(text) {
  const box = $("alert");
  if (!text) { if (!box.classList.contains("note")) box.hidden = true; return; }
  box.className = "alert";
  box.textContent = text;
  box.hidden = false;
}

function refresh() {
  grid.refresh();
  if (state.view === "row") showLabels();
}

function showProgress() {
  const { answers, quality, classes } = state.overview;
  const enough = quality.filter((each) => each.enough).length;
  $("progress").replaceChildren(el("b", {}, answers.toLocaleString("en")), ` answer${answers === 1 ? "" : "s"} · `,
    el("b", {}, String(enough)), ` of ${count(classes.length, "label")} precise enough`);
  showLabelList();
  showEstimate();
}

function interval(title, [value, low, high]) {
  return el("div", {}, el("dt", {}, title),
    el("dd", { title: "Estimate and 90% interval" }, `${estimate(value)} `, el("small", {}, `${estimate(low).replace("%", "")}–${estimate(high)}`)));
}

// Labels of a class that were recovered or confirmed.
const kept = (label) => state.overview.open[label] + state.overview.per_class.yes[label];

function showEstimate() {
  const quality = state.overview.quality[state.label], toCheck = state.overview.open[state.label];
  $("estimate").replaceChildren(
    ...(kept(state.label) ? [interval("Precision", quality.precision), interval("Recall", quality.recall)]
      : [el("div", {}, el("dt", {}, "Precision"), el("dd", {}, "–"), el("dd", {}, el("small", {}, "no label was recovered")))]),
    quality.enough ? el("div", {}, el("dt", { class: "pill" }, "Enough: both intervals are narrower than 10 points")) : "");
  $("to-check").textContent = `${toCheck.toLocaleString("en")} to check`;
  $("to-check").disabled = !toCheck && $("shown").value !== "recovered";
}

// By gain, highest first; labels with few left to find come last.
function labelOrder() {
  const { gain, classes } = state.overview;
  const found = $("find-label").value.trim().toLocaleLowerCase();
  const last = (label) => state.finished.has(label) && label !== state.label;
  return classes.map((_, label) => label).filter((label) => classes[label].toLocaleLowerCase().includes(found))
    .sort((a, b) => last(a) - last(b) || gain[b] - gain[a]);
}

// The label to go on with: the one with the highest gain that is not finished.
function nextLabel() {
  const { gain, classes } = state.overview;
  const left = classes.map((_, label) => label).filter((label) => label !== state.label && !state.finished.has(label));
  return left.length ? left.reduce((best, label) => (gain[label] > gain[best] ? label : best)) : null;
}

// The interval of a label's precision with whiskers, and a point at the estimate; "–" if nothing was recovered.
function precisionOf(label) {
  const [value, low, high] = state.overview.quality[label].precision;
  if (!kept(label)) return { text: "nothing was recovered", picture: el("span", { class: "range none", "aria-hidden": "true" }, "–") };
  const range = el("i"), point = el("b"), { yes, no } = state.overview.per_class;
  range.style.left = percent(low);
  range.style.right = percent(1 - high);
  point.style.left = percent(value);
  const source = yes[label] + no[label] ? "" : ", without any answers";
  return { text: `precision ${estimate(value)}, 90% interval ${estimate(low)} to ${estimate(high)}${source}`,
    picture: el("span", { class: "range", "aria-hidden": "true" }, range, point) };
}

function showLabelList() {
  const { classes, open, quality } = state.overview;
  const items = labelOrder().slice(0, 500).map((label) => {
    const { text, picture } = precisionOf(label);
    return el("li", {}, el("button", { type: "button", class: quality[label].enough ? "enough" : "", "aria-current": label === state.label ? "true" : null,
      onclick: () => chooseLabel(label), title: `${text[0].toUpperCase()}${text.slice(1)}` },
      el("span", { class: "name" }, classes[label]), el("span", { class: "count" }, open[label].toLocaleString("en"),
        el("span", { class: "spoken" }, ` recovered labels to check, ${text}`)), picture));
  });
  const list = $("labels"), focused = list.contains(document.activeElement), top = list.scrollTop;
  list.replaceChildren(...items);
  list.scrollTop = top;
  if (focused) list.querySelector("[aria-current]")?.focus();
}

async function chooseLabel(label) {
  state.label = label;
  $("label-select").value = String(label);
  history.replaceState(null, "", `#label=${label}`);
  await loadLabel();
  showLabelList();
  showEstimate();
}

let loading = 0;
async function loadLabel() {
  const number = ++loading;
  const { classes, kind } = state.overview;
  $("label-name").textContent = classes[state.label];
  $("grid").setAttribute("aria-label", `${$("asks").textContent} ${classes[state.label]}?`);
  const query = new URLSearchParams({ order: $("order").value, shown: $("shown").value });
  const items = await get(`api/labels/${state.label}?${query}`);
  if (number !== loading) return;
  items.decisions.forEach((decision) => { if (decision) learn(decision); });
  items.names = items.names.map(called);
  items.observed = items.observed.map((labels) => labels.map((label) => classes[label]));
  const shown = $("shown").value;
  $("grid").classList.toggle("answered", shown === "answered");
  $("to-check").setAttribute("aria-pressed", shown === "recovered");
  grid.show(items, kind);
  $("nothing").hidden = items.rows.length > 0;
  $("nothing").textContent = { open: "No open questions about this label.", recovered: "All recovered examples of this label are answered." }[shown] ?? "Nothing to show.";
  showEstimate();
  showNextLabel();
}

// Shows only recovered examples that nobody has checked, or all unanswered ones again.
function toggleToCheck() {
  $("shown").value = $("shown").value === "recovered" ? "open" : "recovered";
  loadLabel();
}

function answerSelected(value) {
  const targets = grid.targets();
  const from = grid.selected.size ? targets[targets.length - 1] + 1 : grid.current + 1;
  answerTargets(targets, value);
  grid.selected.clear();
  grid.advance(from);
}

// No to all examples on the screen that are neither answered nor selected.
function answerRestOfScreen() {
  const targets = grid.openOnScreen().filter((index) => !grid.selected.has(index));
  if (!targets.length) return;
  answerTargets(targets, -1);
  grid.advance(targets[targets.length - 1] + 1);
}

function answerTargets(targets, value) {
  const { rows, recovered } = grid.items, label = state.label;
  state.past = state.past.slice(-MOST_UNDONE);
  state.past.push({ items: grid.items, place: grid.state(), keys: new Set(targets.map((index) => keyOf(rows[index], label))) });
  const asked = targets.map((index) => ({ row: rows[index], recovered: recovered[index], screen: state.screen }));
  const again = new Set(asked.map(({ row }) => row));
  state.asked.set(label, [...(state.asked.get(label) ?? []).filter(({ row }) => !again.has(row)), ...asked]);
  answer(targets.map((index) => [rows[index], label]), value);
  if (grid.openOnScreen().length) return;
  finish(label, fewLeft(label));
  state.screen += 1;
}

// After undoing: as the grid was before that answer.
function restoreGrid(decisions) {
  const keys = decisions.map(([, row, label]) => keyOf(row, label));
  const at = state.past.findLastIndex((action) => action.items === grid.items && keys.length && keys.every((key) => action.keys.has(key)));
  if (at >= 0 && state.view === "label") grid.restore(state.past.splice(at)[0].place);
  for (const label of new Set(decisions.map(([, , each]) => each))) if (state.finished.has(label)) finish(label, fewLeft(label));
}

// Answers about a label on the last screen, and on earlier ones until there are ten.
function lastScreens(label) {
  const given = (state.asked.get(label) ?? []).filter(({ row }) => answered(row, label));
  const first = given.at(-FEW)?.screen ?? 0;
  return given.filter(({ screen }) => screen >= first);
}

// Whether these corrected at most one label: yes to one that was not recovered, or no to one that was.
function fewLeft(label) {
  const last = lastScreens(label), corrects = ({ row, recovered }) => answered(row, label).answer === (recovered ? -1 : 1);
  return last.filter(({ recovered }) => !recovered).length >= FEW && last.filter(corrects).length <= 1;
}

const finishedKey = () => `spml-few-left-${state.overview.subject}-${state.overview.run}`;

function finish(label, done) {
  if (done) state.finished.add(label); else state.finished.delete(label);
  store(finishedKey(), state.finished.size ? JSON.stringify([...state.finished]) : null);
  showLabelList();
  showNextLabel();
}

function readFinished() {
  try {
    return new Set(JSON.parse(stored(finishedKey(), "[]")));
  } catch {
    return new Set();
  }
}

function showNextLabel() {
  const next = nextLabel();
  const done = state.finished.has(state.label), empty = !grid.length && $("shown").value === "open";
  $("few").hidden = next === null || !(done || empty);
  $("few-left").textContent = done ? "Few left here." : "";
  $("next-label").querySelector("span").textContent = state.overview.classes[next] ?? "";
}

async function goToNextLabel() {
  await chooseLabel(nextLabel());
  $("grid").focus();
}

// What the answers are for: the selected examples, or the one with the frame.
function showTargets() {
  const n = grid.selected.size, many = n > 1 ? ` to ${n.toLocaleString("en")}` : "";
  $("chosen").textContent = n ? `${n.toLocaleString("en")} selected` : grid.length ? `For the ${noun()} in the frame` : "";
  $("yes").querySelector("span").textContent = `Yes${many}`;
  $("no").querySelector("span").textContent = `No${many}`;
  for (const id of ["yes", "no", "unknown", "rest-of-screen", "select-page"]) $(id).disabled = !grid.length;
}

// One example at a time

async function openRow(row) {
  setView("row");
  if (!state.rows.length) state.rows = (await get("api/rows")).rows;
  const place = row === undefined ? 0 : state.rows.indexOf(row);
  if (place < 0) state.rows.unshift(row);
  await goTo(Math.max(place, 0));
}

async function goTo(place) {
  if (!state.rows.length) return;
  state.at = Math.max(0, Math.min(state.rows.length - 1, place));
  const row = state.rows[state.at];
  const details = await get(`api/rows/${row}`);
  if (row !== state.rows[state.at]) return;
  details.name = called(details.name);
  details.labels.forEach(({ decision }) => { if (decision) learn(decision); });
  state.row = details;
  state.focus = Math.max(0, details.labels.findIndex(({ given, label }) => !given && !answered(row, label)));
  history.replaceState(null, "", `#row=${row}`);
  $("row-place").textContent = `${(state.at + 1).toLocaleString("en")} of ${state.rows.length.toLocaleString("en")}`;
  $("row-name").textContent = details.name;
  showContent();
  showLabels();
  if (state.overview.kind === "image" && state.at + 1 < state.rows.length) new Image().src = `images/${state.rows[state.at + 1]}`;
}

function showContent() {
  const { kind, classes } = state.overview, details = state.row, box = $("row-content");
  const label = details.labels[state.focus]?.label;
  if (kind === "name") { box.replaceChildren(el("p", { class: "words" }, details.name)); return; }
  if (kind !== "image") { showWhole(details, label ?? 0); return; }
  showLegend(state.evidence && label !== undefined ? "Lit regions speak for" : "", label);
  const source = state.evidence && label !== undefined ? `evidence/${details.row}/${label}` : `images/${details.row}`;
  const text = state.evidence ? `${details.name}: what speaks for ${classes[label]}` : details.name;
  const image = el("img", { src: source, alt: text });
  image.addEventListener("load", () => fit(image));
  image.addEventListener("error", () => image.replaceWith(el("p", { class: "words" }, state.evidence ? "This network has no map of evidence." : "This image cannot be read.")));
  box.replaceChildren(image);
}

// A whole text or all values, with what speaks for the label in focus.
async function showWhole(details, label) {
  const [parts] = (await get(`api/contents/${label}?whole&rows=${details.row}`)).contents;
  if (details !== state.row || label !== (details.labels[state.focus]?.label ?? 0)) return;
  const legend = state.overview.kind === "text" ? "Marked words speak for" : "Bars: what speaks for (blue) or against (red)";
  const top = $("row-content").firstElementChild?.scrollTop ?? 0;
  const box = el("div", { class: "whole", role: "group", tabindex: "0", "aria-label": details.name }, content(state.overview.kind, parts));
  $("row-content").replaceChildren(box);
  box.scrollTop = top;
  showLegend(parts.some((part) => part[part.length - 1]) ? legend : "", label);
}

function showLegend(text, label) {
  $("row-legend").replaceChildren(text, " ", el("b", {}, state.overview.classes[label] ?? ""));
  $("row-legend").hidden = !text;
}

function showLabels() {
  const details = state.row, { classes } = state.overview;
  if (!details) return;
  const list = $("row-labels"), focused = list.contains(document.activeElement) ? document.activeElement : null;
  const line = focused && [...list.children].findIndex((item) => item.contains(focused));
  const entries = details.labels.map(({ label, given, confidence, recovered }, place) => {
    const decision = answered(details.row, label);
    const meter = el("i");
    meter.style.width = percent(confidence);
    const measure = given ? "" : [el("span", { class: "meter bar", "aria-hidden": "true" }, meter), el("span", { class: "value" }, percent(confidence))];
    const status = given && !decision ? (given > 0 ? "given with the data" : "given as absent") : decision ? `${WORD[decision.answer]}, ${decision.who}` : recovered ? "recovered" : "";
    const buttons = [["y", 1, "yes", "✓"], ["n", -1, "no", "✗"], ["u", 0, "unknown", "?"]].map(([, value, name, sign]) =>
      el("button", { type: "button", class: name, "aria-pressed": String(decision?.answer === value), "aria-label": `${classes[label]}: ${WORD[value]}`,
        onclick: () => { state.focus = place; answerRow(value); } }, sign));
    return el("li", { class: [place === state.focus && "current", recovered && "recovered"].filter(Boolean).join(" ") },
      el("button", { type: "button", class: "what", "aria-current": place === state.focus ? "true" : null, onclick: () => focusLabel(place) }, classes[label]),
      el("div", { class: "line" }, ...measure, status ? el("span", { class: "tag" }, status) : ""),
      el("div", { class: "buttons" }, ...buttons));
  });
  list.replaceChildren(...entries);
  if (focused) list.children[line]?.querySelector(`.${focused.classList[0]}`)?.focus();
  $("rest").disabled = !unanswered().length;
}

const unanswered = () => state.row.labels.filter(({ label, given }) => !given && !answered(state.row.row, label));

function answerRest() {
  answer(unanswered().map(({ label }) => [state.row.row, label]), -1);
  showLabels();
}

function toggleEvidence() {
  state.evidence = !state.evidence;
  $("evidence").setAttribute("aria-pressed", state.evidence);
  showContent();
}

function focusLabel(place) {
  state.focus = Math.max(0, Math.min(state.row.labels.length - 1, place));
  showLabels();
  if (state.evidence || state.overview.kind !== "image") showContent();
  $("row-labels").children[state.focus]?.scrollIntoView({ block: "nearest" });
}

function answerRow(value) {
  const { row, labels } = state.row;
  if (!labels.length) return;
  answer([[row, labels[state.focus].label]], value);
  const next = labels.findIndex(({ label, given }, place) => place > state.focus && !given && !answered(row, label));
  focusLabel(next < 0 ? state.focus : next);
}

function addLabel() {
  const name = $("add-label").value.trim();
  const label = state.overview.classes.indexOf(name);
  if (!name) return;
  if (label < 0) { notice(`${name} is not one of the classes.`); return; }
  $("add-label").value = "";
  let place = state.row.labels.findIndex((each) => each.label === label);
  if (place < 0) place = state.row.labels.push({ label, given: 0, confidence: 0, recovered: false, decision: null }) - 1;
  state.focus = place;
  answerRow(1);
}

function setView(view) {
  state.view = view;
  $("labels-view").hidden = view !== "label";
  $("row-view").hidden = view !== "row";
  $("view-label").setAttribute("aria-pressed", view === "label");
  $("view-row").setAttribute("aria-pressed", view === "row");
  if (view === "label") { history.replaceState(null, "", `#label=${state.label}`); grid.layout(); }
}

// Keyboard

function keyDown(event) {
  if ($("keys").open || isTyping(event)) {
    if (event.key === "Enter" && event.target === $("add-label")) addLabel();
    if (event.key === "Escape" && event.target.matches?.("input")) event.target.blur();
    return;
  }
  const onButton = event.target.closest?.("button, a") && (event.key === "Enter" || event.key === " ");
  if (onButton) return;
  if (act(event)) event.preventDefault();
}

function act(event) {
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (key === "?") { $("keys").showModal(); return true; }
  if (key === "t") { flipTheme(); return true; }
  if (key === "z") { undo(); return true; }
  return state.view === "label" ? labelKey(event, key) : rowKey(key);
}

function labelKey(event, key) {
  if (key in ANSWER) answerSelected(ANSWER[key]);
  else if (key === "a") grid.selectScreen();
  else if (key === "r") answerRestOfScreen();
  else if (key === "o") { if (grid.length) openRow(grid.items.rows[grid.current]); }
  else if (key === "Enter") loadLabel();
  else if (key === "[" || key === "]") {
    const order = labelOrder(), place = order.indexOf(state.label) + (key === "]" ? 1 : -1);
    if (order[place] !== undefined) chooseLabel(order[place]);
  } else return grid.key(event);
  return true;
}

function rowKey(key) {
  if (!state.row) return false;
  if (key in ANSWER) answerRow(ANSWER[key]);
  else if (key === "ArrowRight" || key === "Enter") goTo(state.at + 1);
  else if (key === "ArrowLeft") goTo(state.at - 1);
  else if (key === "ArrowDown" || key === "j") focusLabel(state.focus + 1);
  else if (key === "ArrowUp" || key === "k") focusLabel(state.focus - 1);
  else if (key === "r") answerRest();
  else if (key === "e" && state.overview.evidence) toggleEvidence();
  else if (key === "o" || key === "Escape") { setView("label"); grid.refresh(); }
  else return false;
  return true;
}

// Start

let flipTheme;

async function poll() {
  if (!document.hidden) {
    try {
      const { decisions, progress } = await get(`api/changes?since=${state.overview.last}`);
      decisions.forEach(learn);
      if (progress) { Object.assign(state.overview, progress); showProgress(); refresh(); }
    } catch (error) {
      if (!outbox.queue.length) problem(error.message);
      setTimeout(poll, POLL);
      return;
    }
    if (!outbox.queue.length) problem(null);
  }
  setTimeout(poll, POLL);
}

async function start() {
  flipTheme = setUpTheme($("theme"));
  state.overview = await get("api/overview");
  const { run, classes } = state.overview;
  state.finished = readFinished();
  document.title = `Review: ${run}`;
  $("title").textContent = run;
  for (const id of ["asks", "asks-narrow"]) $(id).textContent = ASKS[noun()];
  $("view-row").textContent = `By ${noun()}`;
  $("row-view").setAttribute("aria-label", `By ${noun()}`);
  for (const node of document.querySelectorAll(".alone")) node.textContent = `By ${noun()}`;
  for (const node of document.querySelectorAll("[data-evidence]")) node.hidden = !state.overview.evidence;
  $("who").value = stored("spml-who", state.overview.who);
  $("who").addEventListener("change", () => store("spml-who", $("who").value.trim() || null));
  outbox = new Outbox(state.overview.subject, { saved, problem, prepare: withOwnAnswers });
  grid = new Grid($("scroll"), $("grid"), {
    answerOf: (row) => answered(row, state.label),
    changed: showTargets,
    open: (index) => openRow(grid.items.rows[index]),
    contents: async (rows) => (await get(`api/contents/${state.label}?rows=${rows.join(",")}`)).contents,
  });
  $("label-select").append(...labelOrder().map((label) => el("option", { value: label }, classes[label])));
  $("all-labels").append(...classes.map((name) => el("option", { value: name })));
  $("label-select").addEventListener("change", (event) => chooseLabel(Number(event.target.value)));
  $("find-label").addEventListener("input", showLabelList);
  for (const id of ["order", "shown"]) $(id).addEventListener("change", loadLabel);
  for (const [id, value] of [["yes", 1], ["no", -1], ["unknown", 0]]) $(id).addEventListener("click", () => answerSelected(value));
  for (const id of ["undo", "row-undo"]) $(id).addEventListener("click", undo);
  $("rest").addEventListener("click", answerRest);
  $("evidence").addEventListener("click", toggleEvidence);
  $("renew").addEventListener("click", loadLabel);
  $("select-page").addEventListener("click", () => grid.selectScreen());
  $("rest-of-screen").addEventListener("click", answerRestOfScreen);
  $("to-check").addEventListener("click", toggleToCheck);
  $("next-label").addEventListener("click", goToNextLabel);
  $("help").addEventListener("click", () => $("keys").showModal());
  $("view-label").addEventListener("click", () => { setView("label"); grid.refresh(); });
  $("view-row").addEventListener("click", () => openRow(state.row?.row));
  $("previous").addEventListener("click", () => goTo(state.at - 1));
  $("next").addEventListener("click", () => goTo(state.at + 1));
  document.addEventListener("keydown", keyDown);
  const [, what, number] = /^#(label|row)=(\d+)$/.exec(location.hash) ?? [];
  state.label = what === "label" && Number(number) < classes.length ? Number(number) : -1;
  if (state.label < 0 || state.finished.has(state.label)) state.label = nextLabel() ?? Math.max(state.label, 0);
  showProgress();
  await chooseLabel(state.label);
  if (what === "row") await openRow(Number(number));
  document.body.dataset.ready = "true";
  setTimeout(poll, POLL);
}

addEventListener("unhandledrejection", (event) => {
  if (!(event.reason instanceof ServerError)) return;
  event.preventDefault();
  problem(event.reason.message);
});
start().catch((error) => problem(error.message));
