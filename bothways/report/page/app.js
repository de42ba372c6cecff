// The route, the search, the keys and the theme.
const SECTIONS = [
  ["overview", "Overview", overviewSection, null], ["source", "Source", sourceSection, () => sum(D.files.map((file) => file.functions.length))],
  ["timeline", "Timeline", timelineSection, () => D.compilations.length], ["recompilations", "Recompilations", recompilationsSection, () => again.length],
  ["breaks", "Breaks", breaksSection, () => lasting.length], ["graphs", "Graphs", graphsSection, () => D.graphs.length],
  ["kernels", "Kernels", kernelsSection, () => D.kernels.length], ["guards", "Guards", guardsSection, () => sum(D.compilations.map((one) => one.guards.length))],
  ["memory", "Memory", memorySection, () => sum(D.compilations.map((one) => one.saved.length))],
  ...(D.measured ? [["time", "Time", timeSection, () => D.profile.length]] : []),
];

function route(keepDetail) {
  const [section, ...rest] = location.hash.slice(1).split("/").map(decodeURIComponent);
  const found = SECTIONS.find(([id]) => id === section) || SECTIONS[0];
  const main = $("main");
  main.replaceChildren();
  main.className = "";
  main.scrollTop = 0;
  if (keepDetail !== true) $("detail").hidden = true;
  document.querySelectorAll("nav a").forEach((link) => link.classList.toggle("on", link.dataset.id === found[0]));
  found[2](...(found[0] === "source" ? [rest.length ? rest.join("/") : undefined] : rest));
  document.title = `${found[1]} · ${D.title}`;
}

$("title").textContent = D.title;
$("nav").append(...SECTIONS.map(([id, name, , count]) => el("a", { href: `#${id}`, "data-id": id }, name, count ? el("span", { class: `count${id === "breaks" && count() ? " bad" : ""}` }, String(count())) : null)));

// Search: one line for each thing that can be found, made when the first letter is typed.
let index = null;
function indexed() {
  if (index) return index;
  index = [];
  const add = (what, text, at, href) => index.push({ what, text, at, href, low: `${text} ${at}`.toLowerCase() });
  for (const file of D.files) for (const block of file.functions) {
    add("function", block.name, `${file.name}:${block.first}`, `#source/${encodeURIComponent(file.path)}:${block.numbers[0]}`);
    block.numbers.forEach((number, place) => { if (block.text[place].trim()) add("line", block.text[place].trim(), `${file.name}:${number}`, `#source/${encodeURIComponent(file.path)}:${number}`); });
  }
  D.breaks.forEach((found) => add("break", `${found.code} ${found.reason}`, "", "#breaks"));
  D.kernels.forEach((one, id) => add("kernel", one.name, one.half, `#kernels/${id}`));
  D.compilations.forEach((one, id) => { add("compilation", one.name, `#${one.number}`, `#timeline/${id}`); one.guards.forEach(([text]) => add("guard", text, `#${one.number}`, `#timeline/${id}`)); });
  D.graphs.forEach((graph, id) => graph.nodes.forEach((node, place) => add("operation", `${node[0]} ${node[2] === node[0] ? "" : node[2]}`, graph.name, `#graphs/${id}/${place}`)));
  return index;
}
let results = [], active = -1;
function search(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean), box = $("found");
  results = [];
  if (words.length) for (const entry of indexed()) if (words.every((word) => entry.low.includes(word))) { results.push(entry); if (results.length >= 60) break; }
  active = results.length ? 0 : -1;
  box.hidden = !words.length;
  $("search").setAttribute("aria-expanded", String(!box.hidden));
  box.replaceChildren(...(results.length ? results.map((entry, place) => el("a", { href: entry.href, role: "option", class: place === active ? "on" : "", onclick: closeSearch }, el("span", { class: "what" }, entry.what), el("span", { class: "text" }, entry.text), el("span", { class: "at" }, entry.at))) : [el("div", { class: "none" }, "Nothing is called that.")]));
}
function closeSearch() { $("found").hidden = true; $("search").setAttribute("aria-expanded", "false"); $("search").blur(); }
function move(by) {
  if (!results.length) return;
  active = (active + by + results.length) % results.length;
  [...$("found").children].forEach((link, place) => link.classList.toggle("on", place === active));
  $("found").children[active].scrollIntoView({ block: "nearest" });
}
$("search").addEventListener("input", (event) => search(event.target.value));
$("search").addEventListener("keydown", (event) => {
  if (event.key === "ArrowDown" || event.key === "ArrowUp") { move(event.key === "ArrowDown" ? 1 : -1); event.preventDefault(); }
  else if (event.key === "Enter" && active >= 0) { const { href } = results[active]; closeSearch(); if (location.hash === href) route(); else location.hash = href; }
  else if (event.key === "Escape") closeSearch();
  event.stopPropagation();
});
document.addEventListener("click", (event) => { if (!event.target.closest(".search")) $("found").hidden = true; });

// Light and dark, as the system has it until the reader chooses.
const stored = (() => { try { return localStorage.getItem("bothways-theme"); } catch { return null; } })();
function theme(name) { document.documentElement.dataset.theme = name; $("theme").textContent = name === "dark" ? "☀" : "☾"; }
theme(new URLSearchParams(location.search).get("theme") || stored || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
$("theme").addEventListener("click", () => { const name = document.documentElement.dataset.theme === "dark" ? "light" : "dark"; theme(name); try { localStorage.setItem("bothways-theme", name); } catch { /* a file may have no storage */ } });

function keys() {
  const row = (key, text) => el("li", {}, el("kbd", {}, key), ` ${text}`);
  detail(el("h3", {}, "Keys"), el("ul", {}, row("/", "search"), row("1 … 9", "sections"), row("j  k", "next and previous"), row("Enter", "open"), row("Esc", "close"), row("t", "light or dark"), row("?", "this")));
}
$("help").addEventListener("click", keys);

function step(by) {
  const items = [...document.querySelectorAll("main .row.has, main tr.has, main .lane, main .note, main .gnode")].filter((item) => item.offsetParent !== null);
  if (!items.length) return;
  const at = items.indexOf(document.activeElement), next = items[Math.max(0, Math.min(items.length - 1, at < 0 ? 0 : at + by))];
  if (next.tabIndex < 0) next.tabIndex = 0;
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const done = { "/": () => { $("search").focus(); $("search").select(); }, "?": keys, t: () => $("theme").click(), j: () => step(1), k: () => step(-1), Escape: () => { $("detail").hidden = true; } }[event.key];
  if (done) { done(); event.preventDefault(); }
  else if (/^[1-9]$/.test(event.key) && SECTIONS[event.key - 1]) location.hash = `#${SECTIONS[event.key - 1][0]}`;
});
window.addEventListener("hashchange", () => route());
route();
