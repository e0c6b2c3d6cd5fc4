// Keys, tabs of a body, fields that light up with their bytes, and the live tail. Pages work without it.
"use strict";
(() => {
  const rows = () => [...document.querySelectorAll("[data-row]")];
  let current = -1;

  function choose(number) {
    const all = rows();
    if (!all.length) return;
    current = Math.max(0, Math.min(number, all.length - 1));
    all.forEach((row, at) => row.classList.toggle("current", at === current));
    all[current].scrollIntoView({ block: "nearest" });
  }

  const goTo = { o: "/", t: "/topics", g: "/groups", m: "/messages", b: "/brokers", a: "/users", s: "/stores" };
  let prefix = false;

  function follow(selector) {
    const link = document.querySelector(selector);
    if (link) location.assign(link.href);
  }

  document.addEventListener("keydown", (event) => {
    const at = event.target;
    if (at.matches("input, textarea, select")) {
      if (event.key === "Escape") at.blur();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (prefix) {
      prefix = false;
      if (goTo[event.key]) location.assign(goTo[event.key]);
      return;
    }
    if (event.key === "j") choose(current + 1);
    else if (event.key === "k") choose(current - 1);
    else if (event.key === "n") follow("a[rel=next]");
    else if (event.key === "p") follow("a[rel=prev]");
    else if (event.key === "g") prefix = true;
    else if (event.key === "?") location.assign("/help");
    else if (event.key === "/") {
      const box = document.querySelector("input[type=search]");
      if (!box) return;
      event.preventDefault();
      box.focus();
      box.select();
    } else if (event.key === "Enter" && at === document.body && current >= 0) {
      const link = rows()[current]?.querySelector("a");
      if (link) location.assign(link.href);
    }
  });
  document.addEventListener("htmx:afterSwap", () => { if (current >= 0) choose(current); });

  document.addEventListener("click", (event) => {
    const tab = event.target.closest("[data-tab]");
    if (!tab) return;
    const section = tab.closest("[data-tabs]");
    for (const each of section.querySelectorAll("[data-tab]")) each.setAttribute("aria-selected", String(each === tab));
    for (const each of section.querySelectorAll("[data-panel]")) each.hidden = each.dataset.panel !== tab.dataset.tab;
  });

  document.addEventListener("mouseover", (event) => {
    const field = event.target.closest?.("[data-field]");
    for (const each of document.querySelectorAll(".lit")) each.classList.remove("lit");
    if (field) for (const each of document.querySelectorAll(`[data-field="${field.dataset.field}"]`)) each.classList.add("lit");
  });

  const tail = document.querySelector("[data-tail]");
  if (tail) {
    const body = tail.querySelector("tbody");
    const state = document.querySelector("[data-tail-state]");
    const stop = document.querySelector("[data-tail-stop]");
    const source = new EventSource(tail.dataset.tail);
    const cell = (row, text, css) => { const made = row.insertCell(); made.textContent = text ?? ""; if (css) made.className = css; return made; };
    source.onopen = () => { state.textContent = "live"; };
    source.onerror = () => { state.textContent = "reconnecting"; };
    source.addEventListener("message", (event) => {
      const found = JSON.parse(event.data);
      const row = body.insertRow(0);
      row.dataset.row = "";
      const link = document.createElement("a");
      link.href = found.href;
      link.textContent = found.time;
      row.insertCell().append(link);
      cell(row, `${found.broker}/${found.queueId}`, "nowrap quiet");
      cell(row, found.queueOffset, "num");
      cell(row, found.sizeText, "num nowrap");
      cell(row, found.tags);
      cell(row, found.keys, "clip");
      cell(row, found.bodyText, "clip mono");
      while (body.rows.length > 500) body.deleteRow(-1);
    });
    source.addEventListener("skipped", (event) => { state.textContent = `live, ${event.data} not shown`; });
    source.addEventListener("trouble", (event) => { state.textContent = event.data; });
    stop.addEventListener("click", () => { source.close(); state.textContent = "stopped"; stop.disabled = true; });
  }
})();
