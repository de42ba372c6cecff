// What all sections stand on: the data, elements, numbers as people read them, colours of code, the route, the theme.
const $ = (id) => document.getElementById(id);
const D = await (async () => {
  const given = $("data");
  if (given.type === "application/json") return JSON.parse(given.textContent);
  const packed = Uint8Array.from(atob(given.textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
})();

function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") made.style.cssText = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(4)) {
    if (child !== null && child !== undefined && child !== false) made.append(child);
  }
  return made;
}

const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
const seconds = (taken) => (taken >= 10 ? `${taken.toFixed(1)} s` : taken >= 1 ? `${taken.toFixed(2)} s` : taken >= 0.001 ? `${Math.round(taken * 1000)} ms` : `${Math.round(taken * 1e6)} µs`);
const nanos = (taken) => (taken >= 1e9 ? `${(taken / 1e9).toFixed(2)} s` : taken >= 1e6 ? `${(taken / 1e6).toFixed(2)} ms` : taken >= 1e3 ? `${(taken / 1e3).toFixed(1)} µs` : `${Math.round(taken)} ns`);
const bytes = (size) => (size >= 1 << 30 ? `${(size / 2 ** 30).toFixed(2)} GiB` : size >= 1 << 20 ? `${(size / 2 ** 20).toFixed(1)} MiB` : size >= 1 << 10 ? `${(size / 2 ** 10).toFixed(1)} KiB` : `${size} B`);
const lasting = D.breaks.filter((found) => !found.once); // the others are of a first call alone
const sum = (numbers) => numbers.reduce((total, one) => total + one, 0);
const baseName = (path) => path.split(/[\\/]/).pop();
const dot = (state) => el("span", { class: "dot", style: `--c: var(--${state})` });
const tag = (text, state, title) => el("span", { class: "tag", style: `--c: var(--${state})`, title }, text);

// Code in colours: a few words of Python and of C are enough to read it by.
const PYTHON = /("""[^]*?"""|'''[^]*?'''|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|(#.*)|\b(False|None|True|and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|nonlocal|not|or|pass|raise|return|try|while|with|yield|match|case|self)\b|\b(\d[\w.]*)\b/g;
const CLIKE = /("(?:[^"\\\n]|\\.)*")|(\/\/.*|\/\*[^]*?\*\/|^#.*)|\b(const|double|float|int|int64_t|int32_t|uint8_t|unsigned|void|static|for|if|else|return|while|char|extern|__global__|__device__|__shared__|__restrict__|restrict|struct|typedef|enum|bool|long|short|__half|__nv_bfloat16)\b|\b(\d[\w.]*)\b/gm;
const KINDS = ["s", "c", "k", "n"];
function coloured(text, how) {
  const parts = [];
  let last = 0;
  for (const found of text.matchAll(how)) {
    const kind = KINDS[found.slice(1).findIndex((group) => group !== undefined)];
    if (found.index > last) parts.push(text.slice(last, found.index));
    parts.push(el("span", { class: kind }, found[0]));
    last = found.index + found[0].length;
  }
  parts.push(text.slice(last));
  return parts;
}
const python = (text) => coloured(text, PYTHON);
const listing = (text, language) => el("div", { class: "listing", tabindex: "0" }, text.length > 400000 ? text : language === "Python" ? python(text) : coloured(text, CLIKE));

// Places: links to lines of the source section.
const shown = new Map(); // "path:line" -> whether the source section has it
for (const file of D.files) for (const block of file.functions) for (const line of block.numbers) shown.set(`${file.path}:${line}`, true);
function place(number, long) {
  if (number === null || number === undefined) return null;
  const [path, line, name] = D.places[number];
  const text = `${baseName(path)}:${line}${long ? ` in ${name}` : ""}`;
  return shown.has(`${path}:${line}`) ? el("a", { href: `#source/${encodeURIComponent(path)}:${line}`, title: path }, text) : el("span", { class: "where", title: path }, text);
}
function named(file, line) { // a place by the file's own name
  const found = D.files.find((one) => one.name === file && shown.has(`${one.path}:${line}`));
  return found ? el("a", { href: `#source/${encodeURIComponent(found.path)}:${line}` }, `${file}:${line}`) : el("span", { class: "where" }, `${file}:${line}`);
}
const compilationLink = (number) => el("a", { href: `#timeline/${number}` }, `#${D.compilations[number].number} ${D.compilations[number].name}`);
const kernelLink = (number) => el("a", { href: `#kernels/${number}`, class: "mono" }, D.kernels[number].name);
const graphLink = (number, node) => el("a", { href: `#graphs/${number}${node === undefined ? "" : `/${node}`}` }, `${D.graphs[number].name} graph of #${D.compilations[D.graphs[number].compilation].number}`);

// The panel beside the section.
function detail(...content) {
  const panel = $("detail");
  panel.replaceChildren(el("button", { class: "close", title: "Close (Esc)", "aria-label": "Close", onclick: () => { panel.hidden = true; } }, "✕"), ...content.flat(3).filter(Boolean));
  panel.hidden = false;
  panel.scrollTop = 0;
}
const part = (title, ...items) => items.flat().filter(Boolean).length ? [el("h4", {}, title), el("ul", {}, items.flat().filter(Boolean).map((item) => el("li", {}, item)))] : [];

// A table that can be sorted: columns are [title, key, text, numeric].
function table(columns, rows, open, initial) {
  const body = el("tbody");
  let [by, down] = initial || [0, false];
  const draw = () => {
    const key = columns[by][1];
    const sorted = [...rows].sort((one, other) => { const [a, b] = [key(one), key(other)]; return (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1); });
    body.replaceChildren(...sorted.slice(0, 2000).map((row) => el("tr", { class: open ? "has" : "", tabindex: open ? "0" : null, "data-id": row.id, onclick: open && ((event) => { if (!event.target.closest("a")) open(row); }), onkeydown: open && ((event) => { if (event.key === "Enter") open(row); }) }, columns.map(([, , text, numeric]) => el("td", { class: numeric ? "num" : "" }, text(row))))));
    head.querySelectorAll("th").forEach((cell, index) => cell.setAttribute("aria-sort", index !== by ? "none" : down ? "descending" : "ascending"));
  };
  const head = el("tr", {}, columns.map(([title, , , numeric], index) => el("th", { class: numeric ? "num" : "", tabindex: "0", onclick: () => { down = by === index ? !down : Boolean(numeric); by = index; draw(); }, onkeydown: (event) => { if (event.key === "Enter") event.target.click(); } }, title)));
  draw();
  return el("table", {}, el("thead", {}, head), body);
}

// A list of thousands of lines, of which those in sight are there.
function virtualList(count, height, line) {
  const sheet = el("div", { style: `height: ${count * height + 12}px; position: relative` });
  const box = el("div", { class: "vlist", tabindex: "0" }, sheet);
  let from = -1, to = -1;
  const draw = () => {
    const first = Math.max(0, Math.floor(box.scrollTop / height) - 20), last = Math.min(count, Math.ceil((box.scrollTop + box.clientHeight) / height) + 20);
    if (first === from && last === to) return;
    [from, to] = [first, last];
    sheet.replaceChildren(...Array.from({ length: Math.max(0, last - first) }, (_, index) => { const made = line(first + index); made.style.top = `${(first + index) * height + 6}px`; return made; }));
  };
  box.addEventListener("scroll", draw, { passive: true });
  new ResizeObserver(() => { from = -1; draw(); }).observe(box);
  box.show = (index) => { box.scrollTop = Math.max(0, index * height - box.clientHeight / 3); from = -1; draw(); };
  box.draw = () => { from = -1; draw(); };
  return box;
}
