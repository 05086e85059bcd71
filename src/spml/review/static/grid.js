// A grid of any number of cells, of which only the visible ones exist.

import { content, el, percent, sharpen } from "./dom.js";

const FOOT = 28, CAPTION = 17, GAP = 10, OVERSCAN = 2; // pixels, pixels, pixels, lines
const WORD = { 1: "yes", "-1": "no", 0: "cannot tell" };
const SIGN = { 1: "✓", "-1": "✗", 0: "?" };

const NAMED = 3; // labels

const listed = (labels) => labels.slice(0, NAMED).join(", ") + (labels.length > NAMED ? ", …" : "");

export class Grid {
  // hooks: answerOf(row) -> {answer, who, waiting} or null; changed(); open(index); contents(rows) -> texts or values
  constructor(scroll, grid, hooks) {
    Object.assign(this, { scroll, grid, hooks });
    this.items = { rows: [], confidence: [], names: [], recovered: [], observed: [] };
    this.kind = "image";
    this.cells = new Map();
    this.selected = new Set();
    this.current = 0;
    this.anchor = 0;
    scroll.addEventListener("scroll", () => this.schedule(), { passive: true });
    new ResizeObserver(() => this.layout()).observe(scroll);
    grid.addEventListener("pointerdown", (event) => this.pointerDown(event));
    grid.addEventListener("pointermove", (event) => this.pointerMove(event));
    grid.addEventListener("pointerup", (event) => this.pointerUp(event));
    grid.addEventListener("pointercancel", () => this.endLasso());
    grid.addEventListener("dblclick", (event) => { const at = this.indexAt(event); if (at !== null) hooks.open(at); });
    grid.addEventListener("focus", () => this.mark());
  }

  get length() { return this.items.rows.length; }

  show(items, kind) {
    this.items = items;
    this.kind = kind;
    this.selected.clear();
    this.current = this.anchor = 0;
    for (const cell of this.cells.values()) this.drop(cell);
    this.cells.clear();
    this.scroll.scrollTop = 0;
    this.layout();
    this.refresh();
  }

  layout() {
    const style = getComputedStyle(this.scroll);
    const width = this.scroll.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    const wanted = this.kind === "image" ? (width < 500 ? 105 : 168) : Math.min(width, this.kind === "text" ? 330 : 260);
    this.columns = Math.max(1, Math.floor((width + GAP) / (wanted + GAP)));
    this.cellWidth = Math.floor((width - GAP * (this.columns - 1)) / this.columns);
    const content = this.kind === "image" ? Math.round(this.cellWidth * 0.86) : { text: 186, values: 140 }[this.kind] ?? 56;
    this.cellHeight = content + FOOT + (this.items.observed.some((labels) => labels.length) ? CAPTION : 0);
    const lines = Math.ceil(this.length / this.columns);
    this.grid.style.height = `${Math.max(0, lines * (this.cellHeight + GAP) + 4)}px`;
    this.render(true);
  }

  schedule() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => { this.frame = 0; this.render(false); });
  }

  visible(extra = 0) {
    const line = this.cellHeight + GAP;
    const first = Math.max(0, Math.floor(this.scroll.scrollTop / line) - extra);
    const last = Math.ceil((this.scroll.scrollTop + this.scroll.clientHeight) / line) + extra;
    return [Math.min(this.length, first * this.columns), Math.min(this.length, last * this.columns)];
  }

  render(again) {
    const [first, last] = this.visible(OVERSCAN);
    for (const [index, cell] of this.cells) {
      if (index < first || index >= last) { this.drop(cell); this.cells.delete(index); }
    }
    const fresh = [];
    for (let index = first; index < last; index++) {
      let cell = this.cells.get(index);
      if (!cell) { cell = this.make(index); this.cells.set(index, cell); fresh.push(cell); }
      if (again || fresh.includes(cell)) this.place(cell, index);
    }
    this.grid.append(...fresh);
    // Images of cells that only fly past are never requested.
    setTimeout(() => this.load(fresh.filter((cell) => cell.isConnected)), 30);
  }

  place(cell, index) {
    const x = (index % this.columns) * (this.cellWidth + GAP);
    const y = Math.floor(index / this.columns) * (this.cellHeight + GAP);
    cell.style.width = `${this.cellWidth}px`;
    cell.style.height = `${this.cellHeight}px`;
    cell.style.transform = `translate(${x}px, ${y}px)`;
  }

  make(index) {
    const row = this.items.rows[index];
    const confidence = this.items.confidence[index];
    const pic = el("div", { class: "pic" });
    if (this.kind === "name") pic.append(el("p", { class: "words" }, this.items.names[index]));
    const bar = el("i");
    bar.style.width = percent(confidence);
    const recovered = this.items.recovered[index], observed = this.items.observed[index];
    const cell = el("div", { class: recovered ? "cell recovered" : "cell", role: "option", id: `cell-${index}`, title: this.items.names[index] },
      el("span", { class: "spoken" }),
      pic,
      observed.length ? el("p", { class: "caption", "aria-hidden": "true", title: `Observed label: ${listed(observed)}` },
        el("span", { class: "what" }, "observed: "), listed(observed)) : null,
      el("div", { class: "foot", "aria-hidden": "true", title: recovered ? "Average confidence; recovered" : "Average confidence; not recovered" },
        el("span", { class: "meter bar" }, bar), el("span", { class: "value" }, percent(confidence))),
      el("span", { class: "badge", "aria-hidden": "true" }));
    cell.dataset.index = index;
    cell.dataset.row = row;
    this.dress(cell, index);
    return cell;
  }

  load(cells) {
    if (this.kind === "image") cells.forEach((cell) => this.loadImage(cell));
    else if (this.kind !== "name" && cells.length) this.loadContents(cells);
  }

  loadImage(cell) {
    if (cell.querySelector("img, .broken")) return;
    const image = el("img", { alt: "", decoding: "async", draggable: "false", src: `thumbnails/${cell.dataset.row}` });
    image.addEventListener("load", () => sharpen(image));
    image.addEventListener("error", () => {
      if (cell.isConnected) image.replaceWith(el("p", { class: "broken" }, `This image cannot be read: ${cell.title}`));
    });
    cell.querySelector(".pic").append(image);
  }

  async loadContents(cells) {
    const items = this.items;
    let contents;
    try {
      contents = await this.hooks.contents(cells.map((cell) => cell.dataset.row));
    } catch {
      return; // the page says so; the cells are filled when they are shown again
    }
    if (items !== this.items) return;
    cells.forEach((cell, place) => {
      const title = this.kind === "values" ? el("p", { class: "title", "aria-hidden": "true" }, cell.title) : "";
      cell.querySelector(".pic").replaceChildren(title, content(this.kind, contents[place]));
    });
  }

  drop(cell) {
    cell.querySelector("img")?.removeAttribute("src"); // stops the download
    cell.remove();
  }

  // The look of a cell: answer, selection, description for screen readers.
  dress(cell, index) {
    const decision = this.hooks.answerOf(this.items.rows[index]);
    const chosen = this.selected.has(index);
    cell.setAttribute("aria-selected", chosen);
    cell.setAttribute("aria-setsize", this.length);
    cell.setAttribute("aria-posinset", index + 1);
    cell.classList.toggle("current", index === this.current);
    cell.classList.toggle("waiting", Boolean(decision?.waiting));
    if (decision) cell.dataset.answer = decision.answer; else delete cell.dataset.answer;
    cell.querySelector(".badge").textContent = decision ? SIGN[decision.answer] : "";
    const recovered = this.items.recovered[index] ? ", recovered" : "";
    const observed = this.items.observed[index].length ? `, observed: ${listed(this.items.observed[index])}` : "";
    const answered = decision ? `, answered ${WORD[decision.answer]} by ${decision.who}` : "";
    cell.querySelector(".spoken").textContent = `${this.items.names[index]}, confidence ${percent(this.items.confidence[index])}${recovered}${observed}${answered}. `;
  }

  refresh() {
    this.grid.classList.toggle("selecting", this.selected.size > 0);
    for (const [index, cell] of this.cells) this.dress(cell, index);
    this.mark();
    this.hooks.changed();
  }

  mark() {
    const cell = this.cells.get(this.current);
    if (cell) this.grid.setAttribute("aria-activedescendant", cell.id); else this.grid.removeAttribute("aria-activedescendant");
  }

  // Selection

  targets() { return this.selected.size ? [...this.selected].sort((a, b) => a - b) : this.length ? [this.current] : []; }

  select(indices, keep = false) {
    if (!keep) this.selected.clear();
    for (const index of indices) this.selected.add(index);
    this.refresh();
  }

  toggle(index) {
    this.selected.has(index) ? this.selected.delete(index) : this.selected.add(index);
    this.anchor = this.current = index;
    this.refresh();
  }

  range(to) {
    const [low, high] = [Math.min(this.anchor, to), Math.max(this.anchor, to)];
    this.select(Array.from({ length: high - low + 1 }, (_, n) => low + n), true);
  }

  // The examples that are fully visible; a pixel may be cut off.
  onScreen() {
    const [first, last] = this.visible(), whole = [];
    for (let index = first; index < last; index++) {
      const top = this.grid.offsetTop + Math.floor(index / this.columns) * (this.cellHeight + GAP) - this.scroll.scrollTop;
      if (top >= -1 && top + this.cellHeight <= this.scroll.clientHeight + 1) whole.push(index);
    }
    return whole;
  }

  openOnScreen() { return this.onScreen().filter((index) => !this.hooks.answerOf(this.items.rows[index])); }

  selectScreen() { this.select(this.openOnScreen()); }

  // Frames the next unanswered example. Scrolls only if none is fully visible: then its line becomes the first one.
  advance(from) {
    const open = this.openOnScreen(), line = this.cellHeight + GAP;
    const next = open.find((index) => index >= from) ?? open[0] ?? this.nextOpen(from);
    if (next !== null) {
      this.current = this.anchor = next;
      if (!open.length) this.scroll.scrollTop = Math.floor(next / this.columns) * line;
      this.render(false);
    }
    this.refresh();
  }

  // What undoing an answer restores.
  state() { return { top: this.scroll.scrollTop, selected: [...this.selected], current: this.current }; }

  restore({ top, selected, current }) {
    this.scroll.scrollTop = top;
    this.current = this.anchor = current;
    this.render(false);
    this.select(selected);
  }

  move(to, extend = false) {
    if (!this.length) return;
    const next = Math.max(0, Math.min(this.length - 1, to));
    if (extend) {
      if (!this.selected.size) this.anchor = this.current;
      this.selected.clear();
      this.current = next;
      this.range(next);
    } else {
      this.current = this.anchor = next;
    }
    this.reveal(next);
    this.refresh();
  }

  reveal(index) {
    const top = Math.floor(index / this.columns) * (this.cellHeight + GAP);
    if (top < this.scroll.scrollTop) this.scroll.scrollTop = top - 4;
    const bottom = top + this.cellHeight + 8 - this.scroll.clientHeight;
    if (bottom > this.scroll.scrollTop) this.scroll.scrollTop = bottom;
    this.render(false);
  }

  nextOpen(from) {
    for (let index = from; index < this.length; index++) {
      if (!this.hooks.answerOf(this.items.rows[index])) return index;
    }
    return null;
  }

  key(event) {
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.columns, ArrowUp: -this.columns,
      PageDown: this.columns * 4, PageUp: -this.columns * 4, Home: -Infinity, End: Infinity };
    if (event.key in steps) {
      this.grid.classList.add("by-key");
      this.move(this.current + steps[event.key], event.shiftKey);
    } else if (event.key === " ") {
      this.toggle(this.current);
    } else if (event.key === "Escape") {
      this.select([]);
    } else return false;
    return true;
  }

  // Mouse and touch

  indexAt(event) {
    const cell = event.target.closest?.(".cell");
    return cell ? Number(cell.dataset.index) : null;
  }

  point(event) {
    const box = this.grid.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  pointerDown(event) {
    if (event.button !== 0) return;
    this.grid.classList.remove("by-key");
    this.down = { ...this.point(event), index: this.indexAt(event), touch: event.pointerType === "touch", before: new Set(this.selected) };
  }

  pointerMove(event) {
    if (!this.down || this.down.touch) return;
    const at = this.point(event);
    if (!this.lasso) {
      if (Math.hypot(at.x - this.down.x, at.y - this.down.y) < 7) return;
      this.lasso = el("div", { class: "lasso" });
      this.grid.append(this.lasso);
      this.grid.setPointerCapture(event.pointerId);
    }
    const [left, right] = [Math.min(at.x, this.down.x), Math.max(at.x, this.down.x)];
    const [top, bottom] = [Math.min(at.y, this.down.y), Math.max(at.y, this.down.y)];
    Object.assign(this.lasso.style, { left: `${left}px`, top: `${top}px`, width: `${right - left}px`, height: `${bottom - top}px` });
    const box = this.scroll.getBoundingClientRect();
    if (event.clientY > box.bottom - 24) this.scroll.scrollTop += 18;
    if (event.clientY < box.top + 24) this.scroll.scrollTop -= 18;
    const inside = new Set(this.down.before);
    const line = this.cellHeight + GAP, column = this.cellWidth + GAP;
    for (let y = Math.max(0, Math.floor((top + GAP) / line)); y <= Math.floor(bottom / line); y++) {
      for (let x = Math.max(0, Math.floor((left + GAP) / column)); x <= Math.min(this.columns - 1, Math.floor(right / column)); x++) {
        const index = y * this.columns + x;
        if (index < this.length) inside.add(index);
      }
    }
    this.selected = inside;
    this.refresh();
  }

  pointerUp(event) {
    const down = this.down;
    this.down = null;
    if (this.lasso) { this.endLasso(); return; }
    const index = this.indexAt(event);
    if (!down || index === null || index !== down.index) return;
    if (event.shiftKey) { this.current = index; this.range(index); } else this.toggle(index);
  }

  endLasso() {
    this.lasso?.remove();
    this.lasso = null;
    this.down = null;
  }
}
