// Graphs: drawn in layers, of which those in sight are there, or as text.
const GROUP_FROM = 70; // nodes, from which on those of one line are drawn as one
const SILENT = new Set(["getitem", "_set_grad_enabled", "detach"]); // they say nothing of what a line does
let graphView = { drawn: true, grouped: null };

function graphsSection(target, node) {
  const main = $("main");
  main.classList.add("full");
  if (!D.graphs.length) { main.append(el("h1", {}, "Graphs"), el("p", { class: "empty" }, "There are no graphs.")); return; }
  const number = Math.min(Number(target || 0), D.graphs.length - 1), graph = D.graphs[number];
  const chosen = D.compilations[graph.compilation];
  const compilations = [...new Set(D.graphs.map((one) => one.compilation))];
  const pick = el("select", { "aria-label": "Compilation", onchange: (event) => { location.hash = `#graphs/${D.compilations[event.target.value].graphs[0]}`; } }, compilations.map((index) => el("option", { value: index, selected: index === graph.compilation }, `#${D.compilations[index].number} ${D.compilations[index].name}`)));
  const grouped = graphView.grouped === null ? graph.nodes.length > GROUP_FROM : graphView.grouped;
  const again = () => route(true);
  main.append(el("h1", {}, "Graphs"), el("div", { class: "bar-row" }, pick,
    el("span", { class: "seg" }, chosen.graphs.map((index) => el("button", { class: index === number ? "on" : "", onclick: () => { location.hash = `#graphs/${index}`; } }, D.graphs[index].name))),
    el("span", { class: "seg" }, [["drawn", true], ["text", false]].map(([name, drawn]) => el("button", { class: graphView.drawn === drawn ? "on" : "", onclick: () => { graphView.drawn = drawn; again(); } }, name))),
    graphView.drawn ? el("label", { class: "where" }, el("input", { type: "checkbox", checked: grouped, onchange: (event) => { graphView.grouped = event.target.checked; again(); } }), " one box a line") : null,
    el("span", { class: "where" }, plural(graph.nodes.length, "node"))));
  const index = node === undefined ? null : Number(node);
  main.append(graphView.drawn ? drawnGraph(number, graph, grouped, index) : writtenGraph(number, graph, index));
  if (index !== null && graph.nodes[index]) nodeDetail(number, index);
}

function writtenGraph(number, graph, chosen) {
  const lines = [];
  let before = null;
  graph.nodes.forEach((node, index) => {
    if (node[6] !== null && node[6] !== before) { const [path, line, name] = D.places[node[6]]; lines.push([null, `# ${baseName(path)}:${line} in ${name}: ${lineText(node[6])}`]); }
    before = node[6];
    lines.push([index, node[1] === "output" ? node[4] : `${node[0]}${node[3] ? `: ${node[3]}` : ""} = ${node[4]}`]);
  });
  const at = lines.findIndex(([index]) => index === chosen && chosen !== null);
  const box = virtualList(lines.length, 21, (row) => el("div", { class: `v${row === at ? " on" : ""}`, onclick: () => { if (lines[row][0] !== null) nodeDetail(number, lines[row][0]); } }, python(lines[row][1])));
  requestAnimationFrame(() => { if (at >= 0) box.show(at); else box.draw(); });
  return box;
}

// Boxes: one for each node, or for neighbours of one line.
function boxesOf(graph, grouped) {
  const boxes = [], boxOf = new Array(graph.nodes.length);
  graph.nodes.forEach((node, index) => {
    const last = boxes[boxes.length - 1];
    // What is given, and sizes and numbers that are computed from it, say little.
    const call = node[1].startsWith("call"), given = node[1] === "placeholder" || node[1] === "get_attr" || (call && node[6] === null && (!node[3] || node[3].startsWith("Sym")));
    if (grouped && given) return; // put into boxes below, when it is known who reads them
    const silent = call && SILENT.has(node[2]);
    if (grouped && last && call && last.call && (last.place === node[6] || silent || last.silent)) {
      last.nodes.push(index);
      if (last.silent && !silent) { last.place = node[6]; last.silent = false; }
    } else boxes.push({ nodes: [index], place: node[6], call, op: node[1], silent });
    boxOf[index] = boxes.length - 1;
  });
  if (grouped) { // inputs stand together that the same box reads first
    const reader = new Map();
    for (let index = graph.nodes.length - 1; index >= 0; index--) {
      const first = boxOf[index] ?? reader.get(index);
      if (first !== undefined) for (const source of graph.nodes[index][5]) if (boxOf[source] === undefined) reader.set(source, Math.min(reader.get(source) ?? Infinity, first));
    }
    const together = new Map();
    graph.nodes.forEach((node, index) => {
      if (boxOf[index] !== undefined) return;
      const key = reader.get(index);
      if (!together.has(key)) { together.set(key, boxes.length); boxes.push({ nodes: [], place: null, call: false, op: "placeholder" }); }
      boxOf[index] = together.get(key);
      boxes[boxOf[index]].nodes.push(index);
    });
  }
  boxes.forEach((box, own) => { box.from = [...new Set(box.nodes.flatMap((index) => graph.nodes[index][5]).map((source) => boxOf[source]))].filter((other) => other !== own); box.to = []; });
  boxes.forEach((box, own) => box.from.forEach((other) => boxes[other].to.push(own)));
  return [boxes, boxOf];
}

function laidOut(boxes) {
  const WIDTH = 176, GAP = 22, ROW = 82;
  const given = (box) => box.op === "placeholder" || box.op === "get_attr";
  boxes.forEach((box) => { box.layer = given(box) ? -1 : box.from.reduce((most, other) => Math.max(most, boxes[other].layer + 1 || 0), 0); });
  // What reads inputs alone, and inputs, stand right above what reads them first, not all in one row.
  const first = (box) => box.to.reduce((least, other) => (given(boxes[other]) ? least : Math.min(least, boxes[other].layer)), Infinity);
  for (let index = boxes.length - 1; index >= 0; index--) {
    const box = boxes[index];
    if (!given(box) && box.from.every((other) => given(boxes[other])) && Number.isFinite(first(box))) box.layer = Math.max(0, first(box) - 1);
  }
  boxes.forEach((box) => { if (given(box)) box.layer = Number.isFinite(first(box)) ? first(box) - 1 : 0; });
  const least = Math.min(0, ...boxes.map((box) => box.layer));
  const layers = [];
  boxes.forEach((box, index) => { box.layer -= least; (layers[box.layer] = layers[box.layer] || []).push(index); });
  let widest = 1;
  for (const layer of layers) {
    if (!layer) continue;
    widest = Math.max(widest, layer.length);
    for (const index of layer) { const known = boxes[index].from.filter((other) => boxes[other].x !== undefined); boxes[index].x = known.length ? sum(known.map((other) => boxes[other].x)) / known.length : 1e9; }
    layer.sort((one, other) => boxes[one].x - boxes[other].x || one - other);
    // Each as near to what it reads as the ones before it let it be.
    let right = -Infinity;
    layer.forEach((index, place) => { const wanted = boxes[index].x === 1e9 ? (place ? right + 1 : 0) : boxes[index].x; boxes[index].x = Math.max(wanted - (boxes[index].x === 1e9 ? 0 : 0), right + 1); right = boxes[index].x; });
  }
  const left = Math.min(...boxes.map((box) => box.x));
  boxes.forEach((box) => { box.px = 24 + (box.x - left) * (WIDTH + GAP); box.py = 20 + box.layer * ROW; });
  return [Math.max(...boxes.map((box) => box.px)) + WIDTH + 60, 20 + layers.length * ROW + 40, WIDTH];
}

const kernelPlaces = new Set();
for (const kernel of D.kernels) for (const [operation, file, line] of kernel.members) kernelPlaces.add(`${file}:${line}`);
function boxState(graph, box) {
  if (!box.call) return "folded";
  if (graph.name === "captured") return box.place !== null && kernelPlaces.has(`${baseName(D.places[box.place][0])}:${D.places[box.place][1]}`) ? "kernel" : "captured";
  return box.place !== null && kernelPlaces.has(`${baseName(D.places[box.place][0])}:${D.places[box.place][1]}`) && !box.nodes.every((index) => /^(mm|addmm|bmm|convolution|_scaled|linear)/.test(graph.nodes[index][2])) ? "kernel" : "aten";
}

function drawnGraph(number, graph, grouped, chosen) {
  const [boxes, boxOf] = boxesOf(graph, grouped);
  const [width, height, boxWidth] = laidOut(boxes);
  const edges = boxes.flatMap((box, index) => box.from.map((other) => [other, index]));
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("width", width); svg.setAttribute("height", height);
  const layer = el("div");
  const canvas = el("div", { class: "canvas", tabindex: "0" }, el("div", { class: "sheet", style: `width: ${width}px; height: ${height}px` }, svg, layer));
  let selected = chosen === null ? null : boxOf[chosen];
  const boxElement = (box, index) => {
    const first = graph.nodes[box.nodes[0]], last = graph.nodes[box.nodes[box.nodes.length - 1]];
    const names = [...new Set(box.nodes.map((one) => graph.nodes[one][2]).filter((name) => !SILENT.has(name)))];
    const title = box.nodes.length === 1 ? (box.op === "placeholder" ? first[0] : first[2]) : box.op === "placeholder" ? plural(box.nodes.length, "input") : names.slice(0, 4).join(" ") || first[2];
    const at = box.place === null ? "" : `${baseName(D.places[box.place][0])}:${D.places[box.place][1]} · `;
    const about = box.nodes.length === 1 ? last[3] : box.op === "placeholder" ? `${first[0]} … ${last[0]}` : `${at}${plural(box.nodes.length, "node")}`;
    return el("div", { class: `gnode${box.call ? "" : " input"}${index === selected ? " on" : ""}`, style: `left: ${box.px}px; top: ${box.py}px; width: ${boxWidth}px; --c: var(--${boxState(graph, box)})`, title: `${title}\n${about}${box.place !== null ? `\n${lineText(box.place)}` : ""}`, onclick: () => { selected = index; draw(true); if (box.nodes.length === 1) nodeDetail(number, box.nodes[0]); else groupDetail(number, graph, box); } }, el("b", {}, title), el("span", {}, about || " "));
  };
  let seen = "";
  const draw = (anyway) => {
    const top = canvas.scrollTop - 300, bottom = canvas.scrollTop + canvas.clientHeight + 300, left = canvas.scrollLeft - 400, right = canvas.scrollLeft + canvas.clientWidth + 400;
    const key = `${Math.round(top / 100)} ${Math.round(left / 100)} ${canvas.clientHeight}`;
    if (key === seen && anyway !== true) return;
    seen = key;
    layer.replaceChildren(...boxes.map((box, index) => [box, index]).filter(([box]) => box.py > top && box.py < bottom && box.px + boxWidth > left && box.px < right).map(([box, index]) => boxElement(box, index)));
    const paths = [];
    for (const [from, to] of edges) {
      const one = boxes[from], other = boxes[to];
      if (other.py < top || one.py > bottom) continue;
      if (Math.max(one.px, other.px) + boxWidth < left || Math.min(one.px, other.px) > right) continue;
      if (to - from > 1 && other.layer - one.layer > 40 && from !== selected && to !== selected) continue; // far away: shown when chosen
      const path = document.createElementNS(space, "path");
      const x1 = one.px + boxWidth / 2, y1 = one.py + 40, x2 = other.px + boxWidth / 2, y2 = other.py, bend = Math.max(18, Math.min(60, (y2 - y1) / 2));
      path.setAttribute("d", `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}`);
      if (from === selected || to === selected) path.setAttribute("class", "on");
      paths.push(path);
      if (paths.length > 3000) break;
    }
    svg.replaceChildren(...paths);
  };
  canvas.addEventListener("scroll", () => draw(), { passive: true });
  new ResizeObserver(() => draw(true)).observe(canvas);
  requestAnimationFrame(() => {
    const at = boxes[selected === null ? 0 : selected];
    if (at) { canvas.scrollTop = selected === null ? 0 : Math.max(0, at.py - canvas.clientHeight / 2); canvas.scrollLeft = Math.max(0, at.px - canvas.clientWidth / 2 + boxWidth / 2); }
    draw(true);
  });
  return canvas;
}

function groupDetail(number, graph, box) {
  detail(el("h3", {}, lineText(box.place) || (box.call ? "no line" : "inputs")), el("div", {}, place(box.place, true)), part(plural(box.nodes.length, "node"), box.nodes.slice(0, 200).map((index) => [el("a", { class: "mono", href: `#graphs/${number}/${index}` }, graph.nodes[index][2]), el("span", { class: "where mono" }, ` ${graph.nodes[index][3]}`)])));
}

function nodeDetail(number, index) {
  const graph = D.graphs[number], [name, op, short, value, call, inputs, at] = graph.nodes[index];
  const link = (other) => el("a", { class: "mono", href: `#graphs/${number}/${other}` }, graph.nodes[other][0]);
  const users = graph.nodes.map((node, other) => [node, other]).filter(([node]) => node[5].includes(index)).map(([, other]) => other);
  const kernels = at === null ? [] : D.kernels.map((one, id) => [one, id]).filter(([one]) => one.compilation === graph.compilation && one.members.some(([, file, line]) => line === D.places[at][1] && file === baseName(D.places[at][0])));
  detail(el("h3", {}, name), el("div", { class: "where" }, graphLink(number)), part("gives", value ? el("code", {}, value) : null), part("call", el("code", {}, call)),
    at === null ? [] : part("line", [place(at, true), el("div", { class: "mono where" }, lineText(at))]), part("reads", inputs.map(link)), part("read by", users.slice(0, 50).map(link)),
    part("kernels of that line", kernels.slice(0, 20).map(([one, id]) => [kernelLink(id), ` ${one.half}`])));
}
