// Small helpers shared by both pages. Text never becomes markup.

export const $ = (id) => document.getElementById(id);

export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// A row without an image: a text in pieces [piece, share], or values [name, value, what it adds to the label].
export function content(kind, parts) {
  if (kind === "text") {
    return el("p", { class: "words" }, ...parts.map(([piece, share]) => {
      if (!share) return piece;
      const mark = el("mark", {}, piece);
      mark.style.setProperty("--share", share);
      return mark;
    }));
  }
  const most = Math.max(1e-9, ...parts.map(([, , part]) => Math.abs(part)));
  return el("table", { class: "values" }, el("tbody", {}, ...parts.map(([name, value, part]) => {
    const bar = el("i", { class: part < 0 ? "against" : "for" });
    bar.style.width = percent(Math.abs(part) / most);
    const meaning = part ? (part > 0 ? "speaks for the label" : "speaks against the label") : null;
    return el("tr", { title: meaning }, el("th", { scope: "row" }, name), el("td", {}, String(value)),
      el("td", { class: "part" }, part ? bar : "", meaning ? el("span", { class: "spoken" }, meaning) : ""));
  })));
}

const MOST_ENLARGED = 2.5, LEAST_SHOWN = 480, TINY = 100; // pixels

// Shows an image as large as its box, but not much larger than it is, unless it is tiny.
export function fit(image) {
  const { naturalWidth: width, naturalHeight: height } = image;
  const factor = Math.max(MOST_ENLARGED, LEAST_SHOWN / Math.max(width, height));
  image.style.width = `min(100%, ${factor * width}px)`;
  image.style.height = `min(100%, ${factor * height}px)`;
  sharpen(image);
}

// The pixels of a tiny image keep their edges when it is enlarged.
export const sharpen = (image) => image.classList.toggle("pixels", image.naturalWidth < TINY);

export const percent = (value) => `${Math.round(100 * value)}%`;

// As percent, but only 1 is 100% and only 0 is 0%.
export const estimate = (value) => (value > 0 && value < 0.005 ? "<1%" : value < 1 && value >= 0.995 ? ">99%" : percent(value));
export const count = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

export function stored(key, fallback = null) {
  try { return localStorage.getItem(key) ?? fallback; } catch { return fallback; }
}

export function store(key, value) {
  try { value === null ? localStorage.removeItem(key) : localStorage.setItem(key, value); } catch { /* private mode */ }
}

export function setUpTheme(button) {
  const root = document.documentElement;
  const saved = stored("spml-theme");
  if (saved) root.dataset.theme = saved;
  const flip = () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    store("spml-theme", root.dataset.theme);
  };
  button.addEventListener("click", flip);
  return flip;
}

// Whether a key press is meant for a text field or a list of choices.
export const isTyping = (event) => event.target.matches?.("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey;
