// The user's source, every line with what became of it.
function sourceSection(target) {
  const main = $("main");
  const [path, line] = target ? [target.slice(0, target.lastIndexOf(":")), Number(target.slice(target.lastIndexOf(":") + 1))] : [];
  main.append(el("h1", {}, "Source"), el("p", { class: "lead" }, "Each line by what became of it. Choose a line to see its graphs, kernels, guards and memory."));
  const counts = {};
  for (const file of D.files) for (const block of file.functions) for (const facts of Object.values(block.facts)) counts[facts.s] = (counts[facts.s] || 0) + 1;
  main.append(el("div", { class: "legend" }, Object.entries(D.states).filter(([state]) => counts[state]).map(([state, text]) => el("label", {}, dot(state), `${text} (${counts[state]})`))));
  let blocks = 0;
  for (const file of D.files) for (const block of file.functions) {
    const chosen = path === file.path && block.numbers.includes(line);
    const open = chosen || (!file.library && blocks < 30);
    blocks += !file.library;
    main.append(functionCard(file, block, open));
  }
  if (!D.files.length) main.append(el("p", { class: "empty" }, "There is no source to show."));
  if (path !== undefined) {
    const row = main.querySelector(`[data-line="${CSS.escape(`${path}:${line}`)}"]`);
    if (row) { row.scrollIntoView({ block: "center" }); main.scrollLeft = 0; row.click(); row.focus({ preventScroll: true }); }
  }
}

function functionCard(file, block, open) {
  const facts = Object.values(block.facts);
  const found = (state) => facts.filter((one) => one.s === state).length;
  const tags = [["break", "with a break"], ["kernel", "in kernels"], ["aten", "by ATen"], ["captured", "as captured"], ["python", "as Python"]].filter(([state]) => found(state));
  const card = el("details", { class: "fn" },
    el("summary", {}, el("span", { class: "name" }, block.name), el("span", { class: "path", title: file.path }, `${file.name}:${block.first}`),
      el("span", { class: "sum" }, tags.map(([state, name]) => tag(`${plural(found(state), "line")} ${name}`, state)))));
  const fill = () => { if (card.childElementCount === 1) card.append(el("div", { class: "code" }, block.numbers.map((number, index) => lineRow(file, block, number, block.text[index])))); };
  card.addEventListener("toggle", () => { if (card.open) fill(); });
  if (open) { fill(); card.open = true; }
  return card;
}

function lineRow(file, block, number, text) {
  const facts = block.facts[number] || {};
  const rich = facts.g || facts.k || facts.b || facts.d || facts.m || facts.t;
  const tags = [];
  if (facts.t) tags.push(tag(nanos(facts.t), "accent", "measured, all steps together"));
  if (facts.m) tags.push(tag(`saves ${bytes(facts.m)}`, "python", "saved for the backward"));
  if (facts.k) tags.push(tag(facts.k.length === 1 ? "1 kernel" : `${facts.k.length} kernels`, "kernel"));
  else if (facts.o) tags.push(tag(plural(facts.o, "operation"), facts.s === "captured" ? "captured" : "aten"));
  if (facts.d) tags.push(tag(plural(facts.d.length, "guard"), "guard"));
  const show = () => { document.querySelectorAll(".row.on").forEach((row) => row.classList.remove("on")); row.classList.add("on"); lineDetail(file, block, number, text, facts); };
  const row = el("div", { class: `row s-${facts.s || "none"}${rich ? " has" : ""}${["break", "kernel", "aten", "captured", "python"].includes(facts.s) ? " tint" : ""}`, style: facts.s ? `--c: var(--${facts.s})` : null, "data-line": `${file.path}:${number}`, tabindex: rich ? "0" : "-1", title: D.states[facts.s], onclick: rich ? show : null, onkeydown: (event) => { if (event.key === "Enter") show(); } },
    el("span", { class: "no" }, String(number)), el("span", { class: "src" }, python(text)), tags.length ? el("span", { class: "tags" }, tags) : null);
  return [row, (facts.b || []).map((index) => { const found = D.breaks[index]; return el("div", { class: `inline${found.once ? " once" : ""}`, id: `break-${index}` }, el("b", {}, `${found.once ? "the first call" : "break"} · ${found.code}`), ` ${found.reason}`, el("div", { class: "where" }, found.hint)); })];
}

function nodesAt(path, line) {
  const found = [];
  D.graphs.forEach((graph, number) => graph.nodes.forEach((node, index) => {
    if (node[6] === null || !node[1].startsWith("call")) return;
    const at = D.places[node[6]];
    if (at[1] === line && at[0] === path) found.push([number, index, node]);
  }));
  return found;
}

function lineDetail(file, block, number, text, facts) {
  const nodes = nodesAt(file.path, number);
  const byGraph = new Map();
  for (const [graph, index, node] of nodes) byGraph.set(graph, [...(byGraph.get(graph) || []), [index, node]]);
  detail(
    el("h3", {}, text.trim()), el("div", { class: "where" }, `${file.name}:${number} in ${block.name}`),
    el("p", {}, dot(facts.s), ` ${D.states[facts.s] || ""}`),
    (facts.b || []).map((index) => breakNote(D.breaks[index])),
    facts.t ? part("measured", nanos(facts.t)) : [],
    facts.m ? part("saved for the backward", bytes(facts.m)) : [],
    part("kernels", (facts.k || []).map((index) => [kernelLink(index), ` ${D.kernels[index].half}, ${bytes(D.kernels[index].read + D.kernels[index].written)}`])),
    [...byGraph].flatMap(([graph, found]) => part(`${D.graphs[graph].name} graph of #${D.compilations[D.graphs[graph].compilation].number}`, found.slice(0, 40).map(([index, node]) => [el("a", { class: "mono", href: `#graphs/${graph}/${index}` }, node[2]), el("span", { class: "where mono" }, ` ${node[3]}`)]), found.length > 40 ? `and ${found.length - 40} more` : null)),
    part("guards made here", (facts.d || []).map((guard) => el("code", {}, guard))),
  );
}

const breakNote = (found) => el("div", { class: `note ${found.once ? "warm" : "bad"}` }, el("b", {}, found.code), ` ${found.reason}`, el("p", { class: "hint" }, found.hint), el("p", {}, found.stack.filter((at) => at !== null).map((at, index) => [index ? ", called from " : "at ", place(at, true)])));
