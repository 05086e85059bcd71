"use strict";
(() => {
  const root = document.documentElement;
  const key = "spml-report-theme";
  // A page opened from a file may not have storage; the choice is then forgotten on reload.
  const stored = () => { try { return localStorage.getItem(key); } catch { return null; } };
  const store = (theme) => { try { localStorage.setItem(key, theme); } catch { /* not remembered */ } };
  const current = () => root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const wish = stored();
  if (wish === "light" || wish === "dark") root.dataset.theme = wish;
  addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const name = () => {
      const other = current() === "dark" ? "light" : "dark";
      button.textContent = other === "dark" ? "Dark" : "Light";
      button.setAttribute("aria-label", "Switch to " + other + " colours");
    };
    button.addEventListener("click", () => {
      root.dataset.theme = current() === "dark" ? "light" : "dark";
      store(root.dataset.theme);
      name();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);
    name();
    button.hidden = false;
  });
})();
