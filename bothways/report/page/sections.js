// Sections that are lists: overview, timeline, recompilations, breaks, guards, kernels, memory.
const again = D.compilations.map((one, index) => [one, index]).filter(([one]) => one.failed !== null);
const total = (one) => sum(Object.values(one.seconds));
const stageColour = (stage) => `var(--${["capture", "differentiate", "lower", "build", "backend", "program"].includes(stage) ? stage : "program"})`;
const cachedCount = D.texts.filter((text) => text.cached).length;

function overviewSection() {
  const main = $("main");
  main.append(el("h1", {}, D.title), el("p", { class: "lead" }, `${D.subtitle}`));
  const card = (value, text, href, kind) => el("a", { class: `card ${kind || ""}`, href }, el("b", {}, String(value)), el("span", {}, text));
  const graphs = D.compilations.filter((one) => one.graphs.length).length;
  main.append(el("div", { class: "cards" },
    card(lasting.length || "whole", lasting.length ? (lasting.length === 1 ? "break" : "breaks") : D.breaks.length ? "captured from the second call on" : "captured without a break", D.breaks.length ? "#breaks" : "#source", lasting.length ? "bad" : "good"),
    card(graphs, graphs === 1 ? "graph captured" : "graphs captured", "#graphs"), card(sum(D.kernels.map((one) => one.uses)), D.kernels.length < sum(D.kernels.map((one) => one.uses)) ? `kernels, ${D.kernels.length} of them different` : "kernels", "#kernels"),
    card(sum(D.compilations.map((one) => one.guards.length)), "guards", "#guards"), card(again.length, again.length === 1 ? "recompilation" : "recompilations", "#recompilations"),
    card(seconds(sum(D.compilations.map(total))), "compiling", "#timeline"),
    card(bytes(sum(D.compilations.flatMap((one) => one.saved.filter((value) => !value[4]).map((value) => value[2])))), "saved for the backward", "#memory"),
    card(`${cachedCount} of ${D.texts.length}`, "programs from the cache on disk", "#timeline")));
  const covered = D.compilations.flatMap((one) => one.cuda_graphs);
  if (covered.length) main.append(el("h2", {}, "CUDA graphs"), el("div", { class: "note good" }, covered.map((text) => el("div", {}, text))));
  for (const one of D.functions) {
    main.append(el("h2", {}, one.name), el("pre", { class: "summary" }, one.summary.join("\n")));
  }
  D.breaks.slice(0, 5).forEach((found) => main.append(breakNote(found)));
}

function timelineSection(target) {
  const main = $("main");
  const spans = D.compilations.flatMap((one) => one.spans);
  main.append(el("h1", {}, "Timeline"), el("p", { class: "lead" }, "Every compilation, when it ran and what it spent its time on. A backward is compiled when it first runs. Gaps are left out."));
  if (!spans.length) { main.append(el("p", { class: "empty" }, "Nothing was compiled.")); return; }
  const used = [...new Set(spans.map(([stage]) => stage))];
  main.append(el("div", { class: "legend" }, used.map((stage) => el("label", {}, el("span", { class: "dot", style: `--c: ${stageColour(stage)}` }), `${stage} ${seconds(sum(D.compilations.map((one) => one.seconds[stage] || 0)))}`))));
  // Time between compilations, in which the program ran, is folded to a sliver.
  const edges = spans.map(([, begin, taken]) => [begin, begin + taken]).sort((one, other) => one[0] - other[0]);
  const busy = [];
  for (const [begin, end] of edges) { const last = busy[busy.length - 1]; if (last && begin <= last[1]) last[1] = Math.max(last[1], end); else busy.push([begin, end]); }
  const all = sum(busy.map(([begin, end]) => end - begin)), gap = all * 0.004;
  let offset = 0;
  for (const one of busy) { one.push(offset); offset += one[1] - one[0] + gap; }
  const at = (moment) => { const one = busy.find(([begin, end]) => moment >= begin - 1e-9 && moment <= end + 1e-9); return (one[2] + moment - one[0]) / offset; };
  main.append(el("div", { class: "axis" }, el("span"), el("div", {}, ["0", 0.25, 0.5, 0.75, 1].map((share) => el("span", {}, seconds(all * Number(share))))), el("span")));
  main.append(el("div", { class: "time" }, D.compilations.map((one, index) => el("div", { class: "lane", tabindex: "0", "data-id": index, onclick: () => compilationDetail(index), onkeydown: (event) => { if (event.key === "Enter") compilationDetail(index); } },
    el("span", { class: "who", title: one.name }, `#${one.number} ${one.name}`, one.again ? " ↻" : ""),
    el("span", { class: "track" }, one.spans.map(([stage, begin, taken]) => el("i", { style: `left: ${at(begin) * 100}%; width: ${(taken / offset) * 100}%; background: ${stageColour(stage)}`, title: `${stage} ${seconds(taken)}` }))),
    el("span", { class: "much" }, seconds(total(one)))))));
  if (target !== undefined && D.compilations[target]) { compilationDetail(Number(target)); main.querySelector(`[data-id="${target}"]`)?.scrollIntoView({ block: "nearest" }); main.scrollLeft = 0; }
}

function compilationDetail(index) {
  const one = D.compilations[index];
  document.querySelectorAll(".lane.on").forEach((lane) => lane.classList.remove("on"));
  document.querySelector(`.lane[data-id="${index}"]`)?.classList.add("on");
  detail(el("h3", {}, one.name), el("div", { class: "where" }, `compilation ${one.number}, backend ${one.backend}: ${one.conclusion}`),
    el("div", { class: one.failed === null ? "note" : "note warm" }, one.why), one.reason ? el("div", { class: "note bad" }, one.reason) : null,
    diffBox(one), one.breaks.map((number) => breakNote(D.breaks[number])),
    part("seconds", Object.entries(one.seconds).map(([stage, taken]) => [el("span", { class: "dot", style: `--c: ${stageColour(stage)}` }), ` ${stage} ${seconds(taken)}`])),
    part("runs", one.runs), part("graphs", one.graphs.map((number) => [graphLink(number), el("span", { class: "where" }, ` ${plural(D.graphs[number].nodes.length, "node")}`)])),
    part("kernels", one.kernels.slice(0, 60).map((number) => kernelLink(number)), one.kernels.length > 60 ? `and ${one.kernels.length - 60} more` : null),
    one.cached.length ? part("from the cache on disk", one.cached) : [], part("CUDA graphs", one.cuda_graphs),
    one.saved.length ? part("saved for the backward", bytes(sum(one.saved.filter((value) => !value[4]).map((value) => value[2])))) : [],
    part("effects", one.effects.map((text) => el("code", {}, text))),
    one.guards.length ? [el("h4", {}, plural(one.guards.length, "guard")), el("details", {}, el("summary", {}, "show"), el("ul", {}, one.guards.map(([text, at]) => el("li", {}, el("code", {}, text), " ", place(at)))))] : null,
    one.program ? [el("h4", {}, "program"), el("details", {}, el("summary", {}, "show"), listing(one.program, "Python"))] : null,
    one.texts.flatMap((number) => Object.entries(D.texts[number].texts).map(([language, text]) => [el("h4", {}, `${language} of the ${D.texts[number].name}`), lazyListing(text, language)])));
}

function lazyListing(text, language) {
  const box = el("details", {}, el("summary", {}, plural(text.split("\n").length, "line")));
  box.addEventListener("toggle", () => { if (box.open && box.childElementCount === 1) box.append(listing(text, language)); });
  return box;
}

const diffBox = (one) => one.diff.length ? el("div", { class: "diff" }, one.diff.map(([sign, text]) => el("div", { class: sign === "+" ? "plus" : sign === "-" ? "minus" : "" }, `${sign} ${text}`))) : null;

function recompilationsSection() {
  const main = $("main");
  main.append(el("h1", {}, "Recompilations"), el("p", { class: "lead" }, "A function is compiled again when no program takes a call. It names the guard that failed, and shows what the new program assumes instead of the old one."));
  if (!again.length) main.append(el("p", { class: "empty" }, "Nothing was compiled again."));
  for (const [one, index] of again) {
    main.append(el("h2", {}, compilationLink(index)), el("div", { class: "note warm" }, el("code", {}, one.failed), el("p", { class: "hint" }, advice(one.failed))), diffBox(one) || el("p", { class: "where" }, one.conclusion === "a program" ? "The program before is gone, so there is nothing to compare with." : `No program came of it: ${one.reason || one.conclusion}.`));
  }
}

function advice(guard) {
  if (/\.shape|len\(.*shape/.test(guard)) return "A size changed. The next program is for all such sizes; mark_dynamic, or dynamic=True, makes the first one so.";
  if (/requires_grad|is_grad_enabled/.test(guard)) return "Gradients are wanted in some calls and not in others: each way has a program.";
  if (/ == -?\d|is True|is False/.test(guard)) return "A Python number or flag changed. Pass it as a tensor, or keep it constant.";
  if (/dtype|is_cpu|is_cuda|device/.test(guard)) return "A tensor of another dtype or device: each has a program.";
  if (/as (it|they) w(as|ere)|what (it|they) w(as|ere)/.test(guard)) return "A definition changed: a function, class or module was replaced or patched.";
  return "Keep what the guard speaks of constant, or pass what changes as a tensor.";
}

function breaksSection() {
  const main = $("main");
  main.append(el("h1", {}, "Breaks"), el("p", { class: "lead" }, "Where a capture stopped: plain Python does that one thing, and what comes before and after is in graphs."));
  if (!D.breaks.length) main.append(el("div", { class: "note good" }, "There are none: everything was captured."));
  D.breaks.forEach((found) => main.append(breakNote(found)));
  const plain = D.functions.flatMap((one) => one.standings).filter((text) => text.includes("plain Python"));
  if (plain.length) main.append(el("h2", {}, "Plain Python"), plain.map((text) => el("div", { class: "note warm" }, text)));
}

function guardsSection() {
  const main = $("main");
  main.append(el("h1", {}, "Guards"), el("p", { class: "lead" }, "What each program assumes. They are checked before every call, most of them by one function in C."));
  const rows = D.compilations.flatMap((one, index) => one.guards.map(([text, at]) => ({ id: index, text, at, one })));
  main.append(table([["guard", (row) => row.text, (row) => el("code", {}, row.text)], ["made at", (row) => (row.at === null ? "" : D.places[row.at].join()), (row) => place(row.at) || el("span", { class: "where" }, "every program")], ["program", (row) => row.id, (row) => compilationLink(row.id)]], rows, null, [2, false]));
}

function kernelsSection(target) {
  const main = $("main");
  main.append(el("h1", {}, "Kernels"), el("p", { class: "lead" }, D.measured ? "What was fused, what it moves, and how long it took in the steps that were measured." : "What was fused and what it moves. For times, measure some steps: with bothways.profile() as p, then report(f, path, profile=p)."));
  if (!D.kernels.length) { main.append(el("p", { class: "empty" }, "There are no kernels. Small graphs run as captured; other backends have kernels of their own.")); return; }
  const most = Math.max(...D.kernels.map((one) => (one.read + one.written) * one.uses), 1), longest = Math.max(...D.kernels.map((one) => (one.times ? one.times[1] : 0)), 1);
  const rows = D.kernels.map((one, id) => ({ ...one, id }));
  const columns = [["kernel", (row) => row.name, (row) => el("code", {}, row.name)], ["graph", (row) => row.half, (row) => `${row.half} of #${D.compilations[row.compilation].number}`],
    ["computes", (row) => row.members.length, (row) => [...new Set(row.members.map(([operation]) => operation.replace(/^aten\./, "").replace(/\.\w+$/, "")))].slice(0, 6).join(", ")],
    ["used", (row) => row.uses, (row) => `${row.uses}×`, true], ["reads", (row) => row.read, (row) => bytes(row.read), true], ["writes", (row) => row.written, (row) => bytes(row.written), true],
    ["moves in a call", (row) => (row.read + row.written) * row.uses, (row) => [bytes((row.read + row.written) * row.uses), el("div", { class: "bar", style: `--c: var(--kernel); width: ${Math.max(2, (100 * (row.read + row.written) * row.uses) / most)}%` })], true]];
  if (D.measured) columns.splice(1, 0, ["runs", (row) => (row.times ? row.times[0] : 0), (row) => (row.times ? row.times[0].toLocaleString("en") : ""), true],
    ["time", (row) => (row.times ? row.times[1] : 0), (row) => (row.times ? [nanos(row.times[1]), el("div", { class: "bar", style: `width: ${Math.max(2, (100 * row.times[1]) / longest)}%` })] : ""), true],
    ["rate", (row) => rate(row), (row) => (row.times && row.times[1] ? `${rate(row).toFixed(1)} GB/s` : ""), true]);
  main.append(table(columns, rows, (row) => kernelDetail(row.id), [D.measured ? 2 : 6, true]));
  if (target !== undefined && D.kernels[target]) { kernelDetail(Number(target)); main.querySelector(`tr[data-id="${target}"]`)?.scrollIntoView({ block: "nearest" }); main.scrollLeft = 0; }
}

const rate = (row) => (row.times && row.times[1] ? ((row.read + row.written) * row.times[0]) / row.times[1] : 0);

function kernelDetail(index) {
  const one = D.kernels[index];
  document.querySelectorAll("tr.on").forEach((row) => row.classList.remove("on"));
  document.querySelector(`tr[data-id="${index}"]`)?.classList.add("on");
  const [language, code] = kernelCode(one);
  detail(el("h3", {}, one.name), el("div", { class: "where" }, `${one.half} of `, compilationLink(one.compilation), `, in ${one.routine}`),
    el("p", {}, `${one.uses > 1 ? `used ${one.uses} times in a call; each ` : ""}reads ${bytes(one.read)}, writes ${bytes(one.written)}`, one.times ? `; ran ${one.times[0].toLocaleString("en")} times in ${nanos(one.times[1])}, ${nanos(one.times[1] / Math.max(1, one.times[0]))} each, ${rate(one).toFixed(1)} GB/s` : ""),
    part("computes", one.members.map(([operation, file, line, text]) => [el("code", {}, operation), " ", line ? named(file, line) : "", el("div", { class: "where mono" }, text)])),
    code ? [el("h4", {}, language), listing(code, language)] : null);
}

function kernelCode(one) {
  const texts = D.texts[one.text].texts;
  const language = Object.keys(texts).find((name) => name !== "Python");
  if (!language) return ["", ""];
  const text = texts[language], at = text.search(new RegExp(`\\b${one.name}\\(`));
  if (at < 0) return [language, ""];
  let begin = text.lastIndexOf("\n\n", at) + 2;
  if (begin === 1) begin = 0;
  const end = text.indexOf("\n}\n", at);
  return [language, text.slice(begin, end < 0 ? undefined : end + 3)];
}

function memorySection() {
  const main = $("main");
  const rows = D.compilations.flatMap((one, index) => one.saved.map(([name, value, size, at, given]) => ({ id: index, name, value, size, at, given })));
  const own = rows.filter((row) => !row.given);
  main.append(el("h1", {}, "Memory"), el("p", { class: "lead" }, `What forwards keep for their backwards: ${bytes(sum(own.map((row) => row.size)))} that they compute, ${bytes(sum(rows.filter((row) => row.given).map((row) => row.size)))} of inputs and parameters that are there anyway. What is cheap to compute again is not kept.`));
  if (!rows.length) { main.append(el("p", { class: "empty" }, "Nothing is kept.")); return; }
  const lines = new Map();
  for (const row of own) { const key = row.at === null ? "" : row.at; const known = lines.get(key) || { id: key, at: row.at, size: 0, count: 0 }; known.size += row.size; known.count += 1; lines.set(key, known); }
  const most = Math.max(...[...lines.values()].map((row) => row.size), 1);
  if (lines.size) main.append(el("h2", {}, "By line"), table([["line", (row) => (row.at === null ? "" : D.places[row.at].join()), (row) => [place(row.at, true) || "no line", " ", el("code", { class: "where" }, lineText(row.at))]], ["values", (row) => row.count, (row) => String(row.count), true], ["bytes", (row) => row.size, (row) => [bytes(row.size), el("div", { class: "bar", style: `--c: var(--python); width: ${(100 * row.size) / most}%` })], true]], [...lines.values()], null, [2, true]));
  main.append(el("h2", {}, "By value"), table([["value", (row) => row.name, (row) => el("code", {}, row.name)], ["what", (row) => row.value, (row) => el("code", {}, row.value)], ["kind", (row) => row.given, (row) => (row.given ? "an input" : "computed")], ["line", (row) => (row.at === null ? "" : D.places[row.at].join()), (row) => place(row.at)], ["compilation", (row) => row.id, (row) => compilationLink(row.id)], ["bytes", (row) => row.size, (row) => bytes(row.size), true]], rows, null, [5, true]));
}

function lineText(at) {
  if (at === null) return "";
  const [path, line] = D.places[at];
  for (const file of D.files) if (file.path === path) for (const block of file.functions) { const index = block.numbers.indexOf(line); if (index >= 0) return block.text[index].trim(); }
  return "";
}

function timeSection() {
  const main = $("main");
  const rows = D.profile.map(([kind, name, owner, half, where, count, taken, moved], id) => ({ id, kind, name, owner, half, where, count, taken, moved }));
  const all = sum(rows.map((row) => row.taken)), most = Math.max(...rows.map((row) => row.taken), 1);
  main.append(el("h1", {}, "Time"), el("p", { class: "lead" }, `${nanos(all)} in ${plural(rows.length, "kernel")} and ATen calls, as measured.`));
  main.append(table([["what", (row) => row.name, (row) => el("code", {}, row.name)], ["kind", (row) => row.kind, (row) => tag(row.kind, row.kind === "ATen" ? "aten" : "kernel")], ["graph", (row) => `${row.owner} ${row.half}`, (row) => `${row.half} of ${row.owner}`],
    ["lines", (row) => row.where.join(), (row) => row.where.slice(0, 4).map((at) => [named(at.slice(0, at.lastIndexOf(":")), Number(at.slice(at.lastIndexOf(":") + 1))), " "])],
    ["calls", (row) => row.count, (row) => row.count.toLocaleString("en"), true], ["each", (row) => row.taken / row.count, (row) => nanos(row.taken / row.count), true], ["GB/s", (row) => row.moved / row.taken, (row) => (row.taken ? (row.moved / row.taken).toFixed(1) : ""), true],
    ["time", (row) => row.taken, (row) => [`${nanos(row.taken)}, ${((100 * row.taken) / Math.max(all, 1)).toFixed(1)}%`, el("div", { class: "bar", style: `width: ${Math.max(1, (100 * row.taken) / most)}%` })], true]], rows, null, [7, true]));
}
