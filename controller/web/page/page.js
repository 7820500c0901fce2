// The controller's page: asks /api/ every two seconds, and shows what it says. What comes from outside, such as names,
// reaches the document as text only.

const POLL_MS = 2000;
const TERMS = {
  prefix: "Layer modules from the first on that do not train any more. Training skips their backward pass.",
  parameters: "Share of the model's parameters that lie in frozen modules.",
  net: "Time that freezing has saved so far, less the time that Egeria itself has taken. Rank 0 measures both.",
  saved: "Time that freezing has saved so far: steps with frozen modules against steps without, by rank 0.",
  spent: "Time of the training that Egeria itself has taken so far: probes, agreement, switches and the like.",
  readings: "Measurements of plasticity that have counted.",
  gradient_readings: "Steps whose gradients the workers have told of.",
  plasticity: "How far a module's output has moved from that of an older copy of it: the newest reading.",
  slope: "How fast the smoothed plasticity changes, per reading. A module that has converged has a slope near 0.",
  threshold: "A module freezes when the size of its slope stays under this number.",
  snr: "Signal-to-noise ratio of the module's gradients, with its 90 % interval. Near 0 the gradients are mostly noise.",
  snr_threshold: "A module whose whole interval lies over this still learns, and does not freeze.",
  rank: "One training process, numbered from 0.",
  stream: "The connection from a rank to the controller. Training goes on without it; what is frozen stays frozen.",
  hits: "Samples of rank 0 whose frozen modules were skipped, of those that asked the cache.",
  bytes_read: "Bytes of the cache's entries that rank 0 has read.",
  cache_saved: "Time that skipping has saved rank 0, less what reading and keeping have cost. It is part of the time saved.",
  dropped: "Samples for readings that the worker could not send in time. Training does not wait for them.",
};

const $ = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const percent = (share) => `${(100 * share).toFixed(1)} %`;
const short = (value, digits = 4) => (value !== 0 && Math.abs(value) < 1e-3
  ? Number(value.toPrecision(digits - 1)).toExponential() : String(Number(value.toPrecision(digits))));
const significant = (value) => (value === undefined || value === null ? "–" : short(value, 3));
const ended = (text) => text + (/[.!?]$/.test(text) ? "" : ".");
const sentence = (text) => text.charAt(0).toUpperCase() + ended(text.slice(1));

function seconds(given) {
  const value = Math.abs(given) < 0.05 ? 0 : given; // which has no sign
  const size = Math.abs(value);
  if (size < 100) return `${value.toFixed(1)} s`;
  if (size < 6000) return `${(value / 60).toFixed(1)} min`;
  return `${(value / 3600).toFixed(1)} h`;
}

// An element with text or elements in it. `facts` are attributes; `metric` and `value` say which number of /metrics it
// shows.
function element(tag, content, facts = {}) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(facts)) {
    if (value !== undefined) made.setAttribute(name, value);
  }
  made.append(...(Array.isArray(content) ? content : [content ?? ""]));
  return made;
}
const cell = (content, kind, facts = {}) => element("td", content, { class: kind, ...facts });
const shown = (metric, value, module) => ({ "data-metric": metric, "data-value": value, "data-module": module });
const term = (text, name) => element("span", text, { class: "term", "data-term": name, tabindex: 0 });

// Replaces children only where something has changed, so that focus and selection stay.
function fill(parent, children) {
  const fresh = element(parent.tagName, children);
  if (fresh.innerHTML !== parent.innerHTML) parent.replaceChildren(...fresh.childNodes);
}

async function ask(path) {
  const answer = await fetch(`api/${path}`, { cache: "no-store" });
  if (answer.status === 404) return null;
  if (!answer.ok) throw new Error(`the controller answers ${answer.status}`);
  return answer.json();
}

// --- All jobs

function stateOf(job) {
  if (job.phase === "finished") return ["finished", "good"];
  if (job.phase === "silent") return ["silent", "warn"];
  if (job.blocked) return ["running, blocked", "warn"];
  if (job.paused) return ["running, paused", "warn"];
  return [job.observing ? "running, observing" : "running", "good"];
}
const netOf = (job) => (job.saved_seconds === undefined ? undefined : job.saved_seconds - job.spent_seconds);
const stepsOf = (job) => (job.total_steps > 0 ? `${number.format(job.step)} of ${number.format(job.total_steps)}`
  : number.format(job.step));

function showController(list) {
  const { running, silent, finished } = list.phases;
  $("controller").textContent = `${running} running, ${silent} silent, ${finished} finished · version ${list.version}`;
  $("trouble").hidden = !list.trouble;
  $("trouble").textContent = list.trouble ? `Something is wrong with the controller:\n${list.trouble}` : "";
}

function showList(list) {
  fill($("jobs").tBodies[0], list.jobs.map((job) => {
    const [state, kind] = stateOf(job);
    const net = netOf(job);
    return element("tr", [
      cell(element("a", job.label, { href: `#/job/${job.id}` }), "name"),
      cell(element("span", state, { class: `badge ${kind}` })),
      cell(stepsOf(job), "number"),
      cell(`${job.connected_ranks} of ${job.ranks}`, "number"),
      cell(`${job.applied_prefix} of ${job.modules}`, "number"),
      cell(percent(job.frozen_parameters_ratio), "number"),
      cell(net === undefined ? "–" : seconds(net), "number"),
    ]);
  }));
  const all = Object.values(list.phases).reduce((sum, count) => sum + count, 0);
  $("jobs").hidden = all === 0;
  $("no-jobs").hidden = all > 0;
  $("more-jobs").hidden = all <= list.jobs.length;
  $("more-jobs").textContent = `These are ${list.jobs.length} of ${all} jobs; \`egeria list\` shows all.`;
}

// --- One job

function tile(label, name, value, small, facts = {}) {
  return element("div", [
    element("dt", name ? term(label, name) : label),
    element("dd", [value, small ? element("small", ` ${small}`) : ""], facts),
  ]);
}

function showTiles(job) {
  const tiles = [
    tile("Steps done", null, number.format(job.step), job.total_steps > 0 ? `of ${number.format(job.total_steps)}` : "",
      shown("egeria_job_step", job.step)),
    tile("Frozen modules", "prefix", job.applied_prefix, `of ${job.modules}`,
      shown("egeria_frozen_prefix", job.applied_prefix)),
    tile("Frozen parameters", "parameters", percent(job.frozen_parameters_ratio), "",
      shown("egeria_frozen_parameters_ratio", job.frozen_parameters_ratio)),
  ];
  if (job.saved_seconds !== undefined) {
    tiles.push(
      tile("Time saved, net", "net", seconds(netOf(job))),
      tile("Saved by freezing", "saved", seconds(job.saved_seconds), "",
        shown("egeria_job_saved_seconds", job.saved_seconds)),
      tile("Spent by Egeria", "spent", seconds(job.spent_seconds), "",
        shown("egeria_job_spent_seconds", job.spent_seconds)));
  } else {
    tiles.push(tile("Time saved, net", "net", "–", "not known yet"));
  }
  if (job.totals.readings > 0) {
    tiles.push(tile("Readings", "readings", number.format(job.totals.readings), "",
      shown("egeria_readings_total", job.totals.readings)));
  }
  if (job.totals.gradient_readings > 0) {
    tiles.push(tile("Gradient readings", "gradient_readings", number.format(job.totals.gradient_readings), "",
      shown("egeria_gradient_readings_total", job.totals.gradient_readings)));
  }
  tiles.push(tile("Ranks connected", "rank", job.connected_ranks, `of ${job.ranks}`,
    shown("egeria_connected_ranks", job.connected_ranks)));
  fill($("tiles"), tiles);
}

function bytes(value) {
  const power = Math.min(4, Math.max(0, Math.floor(Math.log2(Math.max(1, value)) / 10)));
  return `${short(value / 2 ** (10 * power))} ${["bytes", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

function showCache(job) {
  const cache = job.cache;
  $("cache-words").textContent = job.cache_words.join(" ");
  const asked = cache ? cache.hits + cache.computed : 0;
  fill($("cache"), asked === 0 ? [] : [
    tile("Samples skipped", "hits", number.format(cache.hits), `of ${number.format(asked)}`,
      shown("egeria_job_cache_samples_total", cache.hits)),
    tile("Read from the cache", "bytes_read", bytes(cache.bytes_read), "",
      shown("egeria_job_cache_read_bytes_total", cache.bytes_read)),
    tile("Saved by the cache", "cache_saved", seconds(cache.saved_seconds), "estimated",
      shown("egeria_job_cache_saved_seconds", cache.saved_seconds)),
  ]);
}

function moduleState(job, index) {
  if (index < job.applied_prefix) return index < job.decided_prefix ? "frozen" : "frozen, about to train";
  if (index < job.decided_prefix) return job.observing ? "would be frozen" : "about to freeze";
  if (index === job.modules - 1) return "trains always";
  return index === job.decided_prefix ? "trains, next to freeze" : "trains";
}

function showModules(job) {
  fill($("modules").tBodies[0], job.module_states.map((module, index) => {
    const of = (metric, value) => shown(metric, value, module.name);
    const snr = module.snr === undefined ? "–"
      : `${significant(module.snr)} (${significant(module.snr_lower)} to ${significant(module.snr_upper)})`;
    return element("tr", [
      cell(index, "number"),
      cell(module.name, "name"),
      cell([moduleState(job, index), module.without_reference ? ` (no reference: ${module.without_reference})` : ""]),
      cell(significant(module.plasticity), "number", of("egeria_plasticity", module.plasticity)),
      cell(significant(module.slope), "number", of("egeria_plasticity_slope", module.slope)),
      cell(module.threshold === undefined ? "–"
        : `±${significant(module.threshold)}, ${module.stationary_readings} in a row`, "number",
      of("egeria_plasticity_threshold", module.threshold)),
      cell(snr, "number", of("egeria_gradient_snr", module.snr)),
      cell(significant(module.snr_threshold), "number", of("egeria_gradient_snr_threshold", module.snr_threshold)),
    ], { class: index < job.applied_prefix ? "frozen" : undefined });
  }));
  // What the policy does not measure has no column.
  const has = (key) => job.module_states.some((module) => module[key] !== undefined);
  const columns = [true, true, true, has("plasticity"), has("slope"), has("threshold"), has("snr"), has("snr_threshold")];
  for (const row of $("modules").rows) [...row.cells].forEach((each, index) => { each.hidden = !columns[index]; });
}

function showRanks(job) {
  fill($("ranks").tBodies[0], job.rank_states.map((rank) => element("tr", [
    cell(rank.rank, "number"),
    cell(element("span", rank.connected ? "open" : "closed", { class: rank.connected ? "good" : "quiet" })),
    cell(number.format(rank.step), "number"),
    cell(rank.frozen_prefix, "number"),
    cell(number.format(rank.samples_dropped), "number"),
    cell(rank.reconnects, "number"),
  ])));
}

const BY = { policy: "the policy", operator: "an operator", checkpoint: "a checkpoint" };

function whatOf(decision, before, names) {
  const [first, last] = [Math.min(before, decision.frozen_prefix), Math.max(before, decision.frozen_prefix) - 1];
  const verb = decision.action === "freeze" ? "Freeze" : "Unfreeze";
  if (last < first) return `${verb} to ${decision.frozen_prefix} modules`;
  const which = first === last ? `module ${first} (${names[first]})`
    : `modules ${first} to ${last} (${names[first]} to ${names[last]})`;
  return `${verb} ${which}${decision.plan === 0 ? ", only observed" : ""}`;
}

function showDecisions(history) {
  const names = history.modules.map((module) => module.name);
  let before = 0;
  const rows = history.decisions.map((decision) => {
    const row = element("tr", [
      cell(number.format(decision.step), "number"),
      cell(whatOf(decision, before, names)),
      cell(sentence(decision.reason), "why"),
      cell(BY[decision.origin], "nowrap"),
      cell(new Date(1000 * decision.time).toLocaleString("sv"), "nowrap"),
    ]);
    before = decision.frozen_prefix;
    return row;
  });
  $("decisions").hidden = rows.length === 0;
  $("no-decisions").hidden = rows.length > 0;
  fill($("decisions").tBodies[0], rows.reverse());
}

// --- Charts

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const LINES = ["#3b82c4", "#d9772b", "#3a9d6a", "#b6548f", "#8a6fd1", "#a78a1f", "#4ba3a8", "#c4525a"];
const charts = new Map(); // by caption: {plot, steps}

// The steps of all lines together, and each line's values at them. A line is broken (null) where a decision comes
// between two of its points, and goes on over steps that only others have (undefined).
function joined(lines, marks) {
  const steps = [...new Set(lines.flatMap((line) => line.points[0]))].sort((a, b) => a - b);
  const values = lines.map((line) => {
    const at = new Map(line.points[0].map((step, index) => [step, line.points[1][index]]));
    const all = steps.map((step) => at.get(step));
    let last = -1; // where the line's newest point is
    steps.forEach((step, index) => {
      if (all[index] === undefined) return;
      if (last >= 0 && marks.some((mark) => steps[last] <= mark && mark < step)) all.fill(null, last + 1, index);
      last = index;
    });
    return all;
  });
  return [steps, ...values];
}

// Draws or redraws a chart with one line or several. `options.stepped` holds each value until the next one.
function chart(parent, caption, lines, range, options = {}) {
  const known = charts.get(caption);
  const names = JSON.stringify(lines.map((line) => line.name));
  const data = options.broken ? joined(lines, options.marks) : lines[0].points;
  if (options.logarithmic) { // which 0 has no place on
    for (let i = 1; i < data.length; ++i) data[i] = data[i].map((value) => (value === 0 ? undefined : value));
  }
  if (known && known.names === names) {
    Object.assign(known, { range, marks: options.marks ?? [] });
    known.plot.setData(data);
    return;
  }
  known?.remove();
  if (lines.every((line) => line.points[0].length === 0)) return;
  const figure = element("figure", element("figcaption", caption));
  parent.append(figure);
  const state = { names, range, marks: options.marks ?? [] };
  // Of the lines of a logarithmic axis, those at powers of ten.
  const filter = (plot, splits) => splits.map((value) => (Math.abs(Math.log10(value) % 1) < 1e-9 ? value : null));
  const axis = (size, space, more) => ({ stroke: color("quiet"), grid: { stroke: color("line"), width: 1, ...more },
    ticks: { stroke: color("line"), ...more }, size, space, font: "12px system-ui",
    values: (plot, values) => values.map((value) => (value === null ? "" : short(value))) });
  state.plot = new uPlot({
    width: figure.clientWidth || 320,
    height: options.height ?? 170,
    cursor: { sync: { key: "steps" }, drag: { x: true, y: false } },
    legend: { live: true },
    scales: { x: { time: false, range: (plot, min, max) => (plot.zoomed ? [min, max] : state.range) },
      y: { distr: options.logarithmic ? 3 : 1, range: options.vertical } },
    axes: [axis(30, 70), axis(64, 26, options.logarithmic && { filter })],
    hooks: { drawClear: [(plot) => drawMarks(plot, state.marks)] },
    series: [{ label: "Step", value: (plot, value) => (value == null ? "–" : number.format(value)) },
      ...lines.map((line, index) => ({
        label: line.name, stroke: LINES[index % LINES.length], width: 2,
        dash: index >= LINES.length ? [6, 4] : undefined,
        paths: options.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
        points: { show: (plot, at) => !options.stepped && plot.data[at].filter((value) => value != null).length < 3 },
        value: (plot, value) => (value == null ? "–" : significant(value)),
      }))],
  }, data, figure);
  state.remove = () => { state.plot.destroy(); figure.remove(); charts.delete(caption); };
  state.fit = () => state.plot.setSize({ width: figure.clientWidth || 320, height: state.plot.height });
  charts.set(caption, state);
}

// Dashed lines at some steps.
function drawMarks(plot, marks) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = color("quiet");
  ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
  for (const step of marks) {
    const x = Math.round(plot.valToPos(step, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

const clearCharts = () => [...charts.values()].forEach((each) => each.remove());

// The frozen prefix at each step, from the decisions.
function prefixPoints(job, history) {
  const steps = [history.first_step];
  const values = [0];
  for (const decision of history.decisions) {
    if (decision.step === steps.at(-1)) values[values.length - 1] = decision.frozen_prefix;
    else { steps.push(decision.step); values.push(decision.frozen_prefix); }
  }
  if (job.step > steps.at(-1)) { steps.push(job.step); values.push(values.at(-1)); }
  return [steps, values];
}

function held(points, step) {
  if (points[0].length === 0 || points[0].at(-1) >= step) return points;
  return [[...points[0], step], [...points[1], points[1].at(-1)]];
}

function showHistory(job, history) {
  $("reading-history").hidden = history.complete;
  showDecisions(history);
  const range = [history.first_step, Math.max(job.total_steps, job.step, history.first_step + 1)];
  const timeline = $("timeline");
  chart(timeline, job.observing ? "Frozen modules, if the decisions were made" : "Frozen modules, as decided",
    [{ name: "Frozen modules", points: prefixPoints(job, history) }], range,
    { stepped: true, vertical: [0, job.modules] });
  const marks = history.decisions.map((decision) => decision.step);
  chart(timeline, "Training loss of rank 0", [{ name: "Loss", points: history.loss }], range, { marks });
  chart(timeline, "Learning rate", [{ name: "Learning rate", points: held(history.learning_rate, job.step) }], range,
    { stepped: true, marks });
  const measured = (key) => history.modules.map((module, index) => ({ name: `${index} ${module.name}`,
    points: module[key] })).filter((line) => line.points[0].length > 0);
  const measures = $("measures");
  const plasticity = measured("plasticity");
  if (plasticity.length > 0) {
    chart(measures, "Plasticity by module", plasticity, range, { marks, broken: true, logarithmic: true });
  }
  const slopes = measured("slope");
  if (slopes.length > 0) chart(measures, "Slope of the plasticity, per reading, by module", slopes, range, { marks, broken: true });
  const snr = measured("snr");
  if (snr.length > 0) chart(measures, "Signal-to-noise ratio of the gradients by module", snr, range, { marks, broken: true });
}

function showJob(job, history) {
  const [state, kind] = stateOf(job);
  document.title = `${job.name} · Egeria`;
  $("name").textContent = job.name;
  $("phase").textContent = state;
  $("phase").className = `badge ${kind}`;
  $("identity").textContent = `Job ${job.id}, start ${job.generation}, policy ${job.policy}.`;
  $("progress").hidden = job.total_steps <= 0;
  $("progress").value = job.total_steps > 0 ? job.step / job.total_steps : 0;
  showTiles(job);
  fill($("sentences"), job.words.map((text) => element("li", text)));
  showModules(job);
  showCache(job);
  showRanks(job);
  if (history) showHistory(job, history);
}

// --- Which of them is shown, and when it is asked for again

let shownJob = null;
let timer = null;
let turn = 0;

async function refresh() {
  clearTimeout(timer);
  const mine = ++turn;
  const id = /^#\/job\/([0-9a-f-]+)$/.exec(location.hash)?.[1] ?? null;
  let next = POLL_MS;
  try {
    const [list, job, history] = await Promise.all([ask("jobs"), id ? ask(`jobs/${id}`) : null,
      id ? ask(`jobs/${id}/history`) : null]);
    if (mine !== turn) return; // somebody has gone elsewhere meanwhile
    if (id !== shownJob) clearCharts();
    shownJob = id;
    showController(list);
    $("list").hidden = id !== null;
    $("job").hidden = id === null || job === null;
    if (id === null) {
      document.title = "Egeria";
      showList(list);
    } else if (job) {
      showJob(job, history);
      if (history && !history.complete) next = 500;
    } else {
      $("controller").textContent = "The controller holds no such job any more.";
    }
  } catch (error) {
    if (mine !== turn) return;
    $("trouble").hidden = false;
    $("trouble").textContent = `The controller does not answer (${error.message}). The page goes on asking; `
      + "what it shows may be old.";
    next = 2 * POLL_MS;
  }
  document.body.dataset.shown = id ?? "list";
  timer = setTimeout(refresh, document.hidden ? 5 * next : next);
}

// --- Explanations of terms, by pointer or keyboard

function explain(event) {
  $("tip")?.remove();
  const at = event.target.closest?.(".term");
  if (!at || event.type === "mouseout" || event.type === "focusout") return;
  const tip = element("div", TERMS[at.dataset.term], { id: "tip", role: "tooltip" });
  document.body.append(tip);
  const box = at.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(box.left, innerWidth - tip.offsetWidth - 8)) + scrollX}px`;
  tip.style.top = `${box.bottom + scrollY + 6}px`;
  at.setAttribute("aria-describedby", "tip");
}
for (const kind of ["mouseover", "mouseout", "focusin", "focusout"]) document.addEventListener(kind, explain);
document.addEventListener("keydown", (event) => { if (event.key === "Escape") $("tip")?.remove(); });
document.querySelectorAll(".term").forEach((each) => { each.tabIndex = 0; });

addEventListener("hashchange", () => { refresh(); $("content").focus(); });
addEventListener("resize", () => charts.forEach((each) => each.fit()));
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { clearCharts(); refresh(); });
refresh();
