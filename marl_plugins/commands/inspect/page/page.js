"use strict";
// One page about a run. The address's fragment is the whole state: filters, and the trajectory and action that are open.
const ROW = 26, BLOCK_CACHE = 6, TOKENS_SHOWN = 4000, NODES_SHOWN = 400, OPEN_ACTIONS = 12;
const COLOURS = ["#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#0072b2", "#d55e00", "#999999"];
const DASHES = ["", "6 3", "2 2", "8 2 2 2", "1 3", "10 4", "4 1", "3 5"];
const CONTROL = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
const $ = (id) => document.getElementById(id);
let data, rows = [], active = 0, search = 0, cache = new Map(), tokenTexts = null;

// --- elements: everything from the run goes in as text ---------------------------------------------------------------
function visible(text) {
  return String(text).replace(CONTROL, (c) => {
    const n = c.charCodeAt(0);
    return n < 256 ? "\\x" + n.toString(16).padStart(2, "0") : "\\u" + n.toString(16).padStart(4, "0");
  });
}
function el(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "rect", "text", "path", "polyline", "polygon", "circle", "line", "title"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child.nodeType ? child : visible(child));
  return node;
}
const number = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits).replace("-", "−"));
const signed = (value) => (value > 0 ? "+" : "") + number(value);

// --- data ------------------------------------------------------------------------------------------------------------
async function unpack(id) {
  const text = $(id).textContent.trim();
  let bytes;
  if (Uint8Array.fromBase64) bytes = Uint8Array.fromBase64(text);
  else {
    const raw = atob(text);
    bytes = new Uint8Array(raw.length);
    for (let n = 0; n < raw.length; n++) bytes[n] = raw.charCodeAt(n);
  }
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}
async function block(kind, n) {
  const id = kind + n;
  if (cache.has(id)) return cache.get(id);
  const found = await unpack(id);
  cache.set(id, found);
  if (cache.size > BLOCK_CACHE) cache.delete(cache.keys().next().value);
  return found;
}
const place = (n, side) => `${side}-${Math.floor(n / data.block)}`;
const trajectory = async (n, side = 0) => (await block("t", place(n, side)))[n % data.block];

// --- the fragment and the filter -------------------------------------------------------------------------------------
function state() {
  const terms = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const open = "task" in terms && "sample" in terms && "step" in terms ? { step: +terms.step, task: terms.task, sample: +terms.sample, action: terms.action } : null;
  if (open) for (const name of ["step", "task", "sample", "action"]) delete terms[name];
  if ("steps" in terms) { terms.step = terms.steps; delete terms.steps; }
  return { open, terms };
}
function go(open, terms, replace = false) {
  const words = { ...terms };
  if (open && "step" in words) { words.steps = words.step; delete words.step; }
  const query = new URLSearchParams(open ? { step: open.step, task: open.task, sample: open.sample, ...(open.action ? { action: open.action } : {}), ...words } : words);
  if ("#" + query === location.hash) return render();
  if (replace) { history.replaceState(null, "", "#" + query); render(); } else location.hash = query;
}
function termsOf(line) {
  const terms = {}, loose = [];
  for (const [, name, quoted, plain] of line.matchAll(/(?:([a-z_]+)=)?(?:"([^"]*)"|(\S+))/g)) {
    if (name) terms[name] = quoted ?? plain; else loose.push(quoted ?? plain);
  }
  return loose.length ? { ...terms, find: loose.join(" ") } : terms;
}
const lineOf = (terms) => Object.entries(terms).map(([name, value]) => `${name}=${/\s/.test(value) ? `"${value}"` : value}`).join(" ");
const NAMES = ["step", "task", "sample", "role", "policy", "outcome", "score", "advantage", "failure", "left_out", "find", "change"];
function range(word, low = -Infinity, high = Infinity) {
  const [a, b] = word.split(":");
  const found = [a === "" ? low : +a, b === undefined ? +a : b === "" ? high : +b];
  if (found.some(Number.isNaN)) throw new Error(`${word}: expected A:B, A:, :B or A`);
  return (value) => value !== null && value !== undefined && found[0] <= value && value <= found[1];
}
function predicate(terms) {
  for (const name of Object.keys(terms)) if (!NAMES.includes(name)) throw new Error(`${name}: expected one of ${NAMES.join(", ")}`);
  const whole = [], each = [];
  const t = terms;
  if (t.step) { const r = range(t.step); whole.push((e) => r(e[0])); }
  if (t.task !== undefined) whole.push((e) => e[1] === t.task);
  if (t.sample) whole.push((e) => e[2] === +t.sample);
  if (t.outcome) { const r = range(t.outcome); whole.push((e) => r(e[3])); }
  if (t.change) {
    if (!data.sides || !["better", "worse", "same"].includes(t.change)) throw new Error(`change=${t.change}: of two runs, better, worse or same`);
    whole.push((e) => (t.change === "better" ? e[7] > e[3] : t.change === "worse" ? e[7] < e[3] : e[7] === e[3]));
  }
  if (t.failure) whole.push((e) => e[4] === t.failure);
  if (t.role) each.push((a) => data.roles[a[0]] === t.role);
  if (t.policy) each.push((a) => data.policies[a[1]] === t.policy);
  if (t.score) { const r = range(t.score); each.push((a) => r(a[2])); }
  if (t.advantage) { const r = range(t.advantage); each.push((a) => r(a[3])); }
  if (t.left_out) each.push((a) => a[4] === t.left_out);
  return (e) => whole.every((test) => test(e)) && (!each.length || e[6].some((a) => each.every((test) => test(a))));
}
function texts(t) {
  const calls = (list) => list.flatMap((c) => [c.call, c.output]);
  return [t.prompt, t.answer || "", t.detail, ...calls(t.tools), ...t.actions.flatMap((a) => [a.text, a.explanation, ...a.shown.map((m) => m[1]), ...calls(a.tools)])];
}
async function select(terms) {
  const mine = ++search;
  let found = [];
  const passes = predicate(terms), pattern = terms.find ? new RegExp(terms.find, "i") : null;
  for (let n = 0; n < data.list.length; n++) if (passes(data.list[n])) found.push(n);
  if (pattern) {
    const containing = [];
    for (const n of found) {
      const t = await trajectory(n);
      if (mine !== search) return null;
      if (texts(t).some((text) => pattern.test(text))) containing.push(n);
    }
    found = containing;
  }
  return mine === search ? found : null;
}

// --- the list --------------------------------------------------------------------------------------------------------
function draw() {
  const list = $("list"), spacer = $("spacer");
  const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 5), last = Math.min(rows.length, first + Math.ceil(list.clientHeight / ROW) + 10);
  const { open, terms } = state(), drawn = [];
  for (let place = first; place < last; place++) {
    const [step, task, sample, outcome, failure, prompt, actions, after] = data.list[rows[place]];
    const lowest = Math.min(...actions.filter((a) => a[3] !== null && (!terms.role || data.roles[a[0]] === terms.role)).map((a) => a[3]));
    const on = open && open.step === step && open.task === task && open.sample === sample;
    const row = el("div", { class: `row${place === active ? " active" : ""}${on ? " open" : ""}`, role: "option", id: "row" + place, "aria-selected": String(place === active), onclick: () => { active = place; openRow(); } },
      el("span", {}, step), el("span", {}, task), el("span", {}, sample), el("span", {}, after !== undefined ? `${number(outcome)} → ${number(after)}` : failure ? "✗ " + failure : number(outcome)), el("span", {}, Number.isFinite(lowest) ? signed(lowest) : "–"), el("span", { class: "note" }, prompt));
    row.style.top = place * ROW + "px";
    drawn.push(row);
  }
  spacer.replaceChildren(...drawn);
  list.setAttribute("aria-activedescendant", "row" + active);
}
function move(by) {
  active = Math.min(Math.max(0, active + by), rows.length - 1);
  const list = $("list"), top = active * ROW;
  $("spacer").style.height = rows.length * ROW + "px";
  if (top < list.scrollTop) list.scrollTop = top;
  if (top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW - list.clientHeight;
  draw();
}
function openRow() {
  if (!rows.length) return;
  const [step, task, sample] = data.list[rows[active]];
  go({ step, task, sample }, state().terms);
}

// --- one trajectory --------------------------------------------------------------------------------------------------
function fields(pairs) {
  return el("dl", {}, ...pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}
function graph(t, chosen) {
  if (t.actions.length > NODES_SHOWN) return el("p", { class: "note" }, `${t.actions.length} actions: too many to draw`);
  const W = 168, H = 34, place = new Map(), used = new Map();
  for (const a of t.actions) {
    const column = used.get(a.depth) || new Set();
    let y = a.lane;
    while (column.has(y)) y++;
    column.add(y); used.set(a.depth, column);
    place.set(a.action, [a.depth * (W + 46) + 8, y * (H + 14) + 8]);
  }
  const width = Math.max(...[...place.values()].map((p) => p[0])) + W + 8, height = Math.max(...[...place.values()].map((p) => p[1])) + H + 8;
  const svg = el("svg", { width, height, role: "img", "aria-label": "who saw whom" });
  for (const a of t.actions) for (const parent of a.parents) {
    if (!place.has(parent)) continue;
    const [x1, y1] = place.get(parent), [x2, y2] = place.get(a.action);
    svg.append(el("path", { d: `M${x1 + W},${y1 + H / 2} C${x1 + W + 25},${y1 + H / 2} ${x2 - 25},${y2 + H / 2} ${x2},${y2 + H / 2}`, "stroke-width": parent === a.continues ? 3 : 1.2 }));
  }
  for (const a of t.actions) {
    const [x, y] = place.get(a.action);
    svg.append(el("g", { class: a.action === chosen ? "on" : "", transform: `translate(${x},${y})`, onclick: () => choose(a.action) },
      el("title", {}, a.action), el("rect", { width: W, height: H, fill: COLOURS[data.roles.indexOf(a.role) % COLOURS.length] }),
      el("text", { x: 8, y: 14 }, a.role), el("text", { x: 8, y: 28 }, a.left_out ? "left out: " + a.left_out : `score ${number(a.score)}  A ${a.advantage === null ? "–" : signed(a.advantage)}`)));
  }
  return el("div", { class: "graph" }, svg);
}
function choose(action) {
  const { open, terms } = state();
  go({ ...open, action }, terms);
}
function toolCall(call, who) {
  return [el("h3", {}, `${who} ${call.tool} (${call.status}, ${number(call.seconds)} s)`), el("pre", {}, call.call), el("h3", {}, "it answered"), el("pre", {}, call.output)];
}
function note(value) {
  if (typeof value === "string") return value;
  const flat = value && !Array.isArray(value) && typeof value === "object" && Object.values(value).every((part) => typeof part !== "object");
  return flat ? Object.entries(value).map(([name, part]) => `${name} ${part}`).join(", ") : JSON.stringify(value);
}
function tokens(action, tok, mode) {
  const box = el("pre", { class: "tokens" });
  const values = mode === "advantage" ? (Array.isArray(tok.a) ? tok.a : tok.t.map(() => tok.a)) : tok.r.length ? tok.e.map((e, n) => e - tok.r[n]) : tok.e.map(() => null);
  const largest = Math.max(1e-9, ...values.filter((v) => v !== null).map(Math.abs));
  tok.t.slice(0, TOKENS_SHOWN).forEach((t, n) => {
    const v = values[n], span = el("span", { title: `${mode === "advantage" ? "advantage" : "engine − trainer"} ${v === null ? "–" : v.toFixed(4)}, engine ${number(tok.e[n], 3)}, trainer ${number(tok.r[n], 3)}`, class: v < 0 ? "minus" : "" }, tokenTexts[t]);
    if (v) span.style.background = `rgb(${v < 0 ? "230 120 0" : "30 120 230"} / ${(0.55 * Math.abs(v)) / largest})`;
    box.append(span);
  });
  if (tok.t.length > TOKENS_SHOWN) box.append(el("span", { class: "note" }, ` … ${tok.t.length - TOKENS_SHOWN} more tokens`));
  return box;
}
function said(a, tok) {
  const mode = $("tokens").value;
  if (mode === "off" || !tok) return el("pre", {}, a.text);
  if (!tokenTexts) return el("div", {}, el("pre", {}, a.text), el("p", { class: "note" }, data.no_tokens));
  return tokens(a, tok, mode);
}
// The command that forks a trajectory of a run at an action; texts are quoted for a shell.
function forking(t, a) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  return data.fork && !t.origin && !t.forked ? `${data.fork} --step ${t.step} --task ${quoted(t.task)} --sample ${t.sample} --action ${quoted(a.action)}` : null;
}
function fill(card, t, a, tok) {
  const criteria = a.notes.coach && a.notes.coach.criteria, begin = a.times;
  card.append(
    ...a.shown.flatMap(([role, text]) => [el("h3", {}, `shown (${role})`), el("pre", {}, text)]),
    el("h3", {}, "said"), said(a, tok), ...a.tools.flatMap((c) => toolCall(c, "called")),
    fields([["policy", `${a.policy}, version ${a.version}${(a.newer || []).map(([n, v]) => `, ${v} from token ${n + 1} on`).join("")}, turn ${a.turn}`], ["saw", a.parents.join(", ") || "the task alone"], ["continues", a.continues], ["words", a.replayed ? "given, not sampled" : null],
      ["tokens", `${a.tokens_shown} shown, ${a.tokens_sampled} sampled, finish ${a.finish}`], ["times", `asked at ${number(begin[0])} s, answered at ${number(begin[1])} s, tools done at ${number(begin[2])} s`],
      ["score", a.score === null ? a.unscored : number(a.score, 3)], ["criteria", criteria && note(criteria)], ["explanation", a.explanation], ["reward", a.reward === null ? null : signed(a.reward)],
      ...Object.entries(a.terms).map(([name, value]) => ["  " + name, signed(value)]), ["return", a.return === null ? null : signed(a.return)], ["advantage", a.advantage === null ? null : signed(a.advantage)],
      ["left out", a.left_out], ["fork this", forking(t, a)], ...Object.entries(notesOf(a)).map(([name, value]) => ["note of " + name, note(value)])]));
}
// The notes of plugins, without what stands above.
function notesOf(a) {
  const { coach, ...notes } = a.notes;
  if (!coach || typeof coach !== "object") return a.notes;
  const { criteria, score, ...rest } = coach;
  return Object.keys(rest).length ? { ...notes, coach: rest } : notes;
}
function actionCard(t, a, tok, on, opened) {
  const card = el("details", { class: `action${on ? " on" : ""}`, id: "action-" + a.action });
  card.style.borderLeftColor = COLOURS[data.roles.indexOf(a.role) % COLOURS.length];
  card.append(el("summary", {}, `${a.action}  score ${number(a.score)}  advantage ${a.advantage === null ? "–" : signed(a.advantage)}${a.left_out ? "  left out: " + a.left_out : ""}`));
  let filled = false;
  const open = () => { if (card.open && !filled) { filled = true; fill(card, t, a, tok); } };
  card.addEventListener("toggle", open);
  card.open = opened;
  open();
  return card;
}
async function showTrajectory(open) {
  const n = data.list.findIndex((e) => e[0] === open.step && e[1] === open.task && e[2] === open.sample), detail = $("detail");
  if (n < 0) return detail.replaceChildren(el("p", {}, `This page does not hold step ${open.step}, task ${open.task}, sample ${open.sample}.`));
  const columns = [];
  for (let side = 0; side < (data.sides || [0]).length; side++) columns.push(await column(n, side, open));
  detail.replaceChildren(el("button", { id: "back", onclick: () => go(null, state().terms) }, "← list"), el("div", { class: data.sides ? "sides" : "" }, ...columns));
  const chosen = open.action && document.getElementById("action-" + open.action);
  if (chosen) chosen.scrollIntoView({ block: "nearest" }); else detail.scrollTop = 0;
}
async function column(n, side, open) {
  const t = await trajectory(n, side), toks = (await block("k", place(n, side)))[n % data.block];
  const failure = t.infrastructure_failure ? `lost: ${t.infrastructure_failure}` : t.agent_failure ? `failed: ${t.agent_failure}` : null;
  return el("div", {},
    el("h2", {}, (data.sides ? `${"AB"[side]}: ${data.sides[side]}: ` : "") + `${t.task}, step ${t.step}, sample ${t.sample}`),
    fields([["prompt", t.prompt], ["label", t.label === null ? null : note(t.label)], ["answer", t.answer], ["outcome", number(t.outcome, 3)], ...Object.entries(t.outcomes).map(([role, value]) => ["outcome of " + role, number(value, 3)]),
      ...Object.entries(t.outcome_parts).map(([name, value]) => ["  " + name, number(value, 3)]), ["failure", failure], ["detail", t.detail], ["seconds", number(t.seconds, 1)],
      ["files", t.files.map((f) => `${f.path} (${f.size} bytes, ${f.writer || "the task"})`).join("\n")]]),
    t.actions.length ? graph(t, open.action) : el("p", { class: "note" }, "no actions"), ...t.tools.flatMap((c) => toolCall(c, "the workflow called")),
    ...t.actions.map((a, k) => actionCard(t, a, toks[k], a.action === open.action, open.action ? a.action === open.action : t.actions.length <= OPEN_ACTIONS)));
}

// --- curves ----------------------------------------------------------------------------------------------------------
function plot(panel) {
  const W = 300, H = 130, L = 34, B = 16, steps = data.metrics.map((m) => m.step);
  const knownOf = (name) => data.metrics.filter((m) => m[name] !== null && m[name] !== undefined);
  const values = [...panel.lines.map(([, name]) => name), ...panel.bands.flat()].flatMap((name) => knownOf(name).map((m) => m[name]));
  if (!values.length && !panel.crosses.length) return null;
  let [low, high] = panel.bounds || [Math.min(...values), Math.max(...values)];
  if (low === high) { low -= 0.5; high += 0.5; }
  const first = steps[0], last = Math.max(steps[steps.length - 1], first + 1);
  const X = (s) => L + ((W - L - 6) * (s - first)) / (last - first), Y = (v) => 6 + ((H - B - 8) * (high - v)) / (high - low);
  const svg = el("svg", { class: "plot", viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none", tabindex: 0, role: "img", "aria-label": `${panel.title}; arrow keys choose a step, Enter filters by it` });
  svg.append(el("text", { x: 2, y: 12 }, high.toPrecision(3)), el("text", { x: 2, y: H - B }, low.toPrecision(3)), el("text", { x: L, y: H - 3 }, first), el("text", { x: W - 24, y: H - 3 }, last));
  panel.bands.forEach(([bottom, top], n) => {
    const known = knownOf(bottom);
    svg.append(el("polygon", { points: [...known.map((m) => `${X(m.step)},${Y(m[top])}`), ...known.reverse().map((m) => `${X(m.step)},${Y(m[bottom])}`)].join(" "), fill: COLOURS[n % 8], opacity: 0.2 }));
  });
  panel.lines.forEach(([, raw], n) => {
    const smoothed = knownOf(raw + "/smoothed").length > 0;
    for (const [name, opacity] of smoothed ? [[raw, 0.3], [raw + "/smoothed", 1]] : [[raw, 1]]) {
      const known = knownOf(name);
      svg.append(el("polyline", { points: known.map((m) => `${X(m.step)},${Y(m[name])}`).join(" "), fill: "none", stroke: COLOURS[n % 8], "stroke-width": 1.6, "stroke-dasharray": DASHES[n % 8], opacity }));
      for (const m of known.length < 30 ? known : []) svg.append(el("circle", { cx: X(m.step), cy: Y(m[name]), r: 2, fill: COLOURS[n % 8], opacity }));
    }
  });
  panel.crosses.forEach(([label, name]) => {
    for (const m of knownOf(name).filter((m) => m[name] > 0)) svg.append(el("text", { x: X(m.step), y: Y(low), "text-anchor": "middle" }, "✕", el("title", {}, label)));
  });
  const cursor = el("line", { y1: 4, y2: H - B, stroke: "currentColor", "stroke-width": 0.7, opacity: 0 });
  svg.append(cursor);
  let at = steps.length - 1;
  const point = (n) => { at = Math.min(Math.max(0, n), steps.length - 1); cursor.setAttribute("x1", X(steps[at])); cursor.setAttribute("x2", X(steps[at])); cursor.setAttribute("opacity", 1); svg.setAttribute("aria-description", `step ${steps[at]}`); };
  const nearest = (event) => { const box = svg.getBoundingClientRect(), x = ((event.clientX - box.left) * W) / box.width; point(steps.reduce((best, s, n) => (Math.abs(X(s) - x) < Math.abs(X(steps[best]) - x) ? n : best), 0)); };
  const filter = () => go(null, { ...state().terms, step: String(steps[at]) });
  svg.addEventListener("mousemove", nearest);
  svg.addEventListener("click", (event) => { nearest(event); filter(); });
  svg.addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft") point(at - 1); else if (event.key === "ArrowRight") point(at + 1); else if (event.key === "Enter") filter(); else return;
    event.preventDefault();
  });
  const legend = el("span", { class: "legend" }, ...panel.lines.filter(([label]) => label).map(([label], n) => {
    const mark = el("svg", { width: 22, height: 8 }, el("line", { x1: 0, x2: 20, y1: 4, y2: 4, stroke: COLOURS[n % 8], "stroke-width": 2, "stroke-dasharray": DASHES[n % 8] }));
    return el("span", {}, mark, " ", label);
  }), ...panel.crosses.map(([label]) => el("span", {}, "✕ ", label)));
  return el("figure", {}, el("figcaption", {}, panel.title + " ", legend), svg);
}

// --- everything together ---------------------------------------------------------------------------------------------
async function render() {
  const { open, terms } = state(), filter = $("filter");
  document.body.classList.toggle("opened", Boolean(open));
  if (document.activeElement !== filter) filter.value = lineOf(terms);
  const wrong = await filtered(open, terms);
  if (wrong === null) return;
  filter.setAttribute("aria-invalid", String(Boolean(wrong)));
  if (wrong) $("status").textContent = visible(wrong);
  if (open) await showTrajectory(open);
  else $("detail").replaceChildren(el("p", { class: "note" }, "Choose a trajectory. Keys: ↑ ↓ or j k move, Enter opens, Escape goes back, / filters. A filter is words such as role=coder outcome=0 step=3:5 find=boxes; see " + NAMES.join(", ") + "."));
  document.body.dataset.ready = String(Number(document.body.dataset.ready || 0) + 1);
}
// Shows the list of a filter; returns what is wrong with it, empty for nothing, null where another one has been asked for meanwhile.
async function filtered(open, terms) {
  if (terms.find) $("status").textContent = "searching …";
  let found;
  try { found = await select(terms); } catch (error) { return error.message; }
  if (!found) return null;
  const before = rows[active];
  rows = found;
  active = Math.max(0, open ? rows.findIndex((n) => data.list[n][0] === open.step && data.list[n][1] === open.task && data.list[n][2] === open.sample) : rows.indexOf(before));
  $("status").textContent = `${rows.length.toLocaleString("en")} of ${data.list.length.toLocaleString("en")}` + (data.of > data.list.length ? ` (a sample of ${data.of.toLocaleString("en")})` : "");
  move(0);
  return "";
}
async function begin() {
  data = await unpack("index");
  rows = data.list.map((_, n) => n);
  document.title = visible(data.title);
  $("title").textContent = visible(data.title);
  tokenTexts = data.no_tokens ? null : await unpack("texts");
  const figures = data.panels.map(plot).filter(Boolean);
  $("panels").replaceChildren(...figures);
  $("curves").hidden = !figures.length;
  $("list").addEventListener("scroll", draw);
  addEventListener("resize", draw);
  addEventListener("hashchange", render);
  let typing;
  $("filter").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => go(null, termsOf($("filter").value), true), 150); });
  $("tokens").addEventListener("change", render);
  addEventListener("keydown", (event) => {
    const inside = ["INPUT", "SELECT"].includes(document.activeElement.tagName);
    if (event.key === "Escape") { if (inside) $("list").focus(); else go(null, state().terms); return; }
    if (inside || event.ctrlKey || event.metaKey || event.altKey || document.activeElement.classList.contains("plot")) return;
    const list = document.activeElement === document.body || document.activeElement === $("list");
    if (event.key === "/") { $("filter").focus(); event.preventDefault(); }
    else if (event.key === "j" || (list && event.key === "ArrowDown")) { move(1); event.preventDefault(); }
    else if (event.key === "k" || (list && event.key === "ArrowUp")) { move(-1); event.preventDefault(); }
    else if (list && event.key === "PageDown") { move(20); event.preventDefault(); }
    else if (list && event.key === "PageUp") { move(-20); event.preventDefault(); }
    else if (list && event.key === "Enter") openRow();
  });
  await render();
}
begin();
