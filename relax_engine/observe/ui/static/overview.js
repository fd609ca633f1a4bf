// What a run does and has done: figures, charts, phases, engines, events.
import { get } from "./api.js";
import { LineChart, bars, gantt } from "./charts.js";
import { bytes, el, number, table, time } from "./dom.js";

const CHARTS = [
  ["Reward", ["rollout/raw_reward"], "rollout/raw_reward"],
  ["Held-out reward", ["eval/*"], "eval/{dataset}"],
  ["Response length", ["rollout/response_len/mean", "rollout/response_len/max"], "rollout/response_len/mean"],
  ["Pass rate", ["rollout/passrate/*"], "rollout/passrate/pass@{k}"],
  ["KL to the reference", ["train/kl_loss", "train/kl_reward"], "train/kl_loss"],
  ["KL of the step", ["train/ppo_kl"], "train/ppo_kl"],
  ["Entropy", ["train/entropy_loss"], "train/entropy_loss"],
  ["Log-prob of sampled tokens", ["rollout/rollout_log_probs"], "rollout/rollout_log_probs"],
  ["Loss", ["train/loss"], "train/loss"],
  ["Gradient norm", ["train/grad_norm"], "train/grad_norm"],
  ["Clipped tokens", ["train/pg_clipfrac"], "train/pg_clipfrac"],
  ["Engine and trainer log-probs", ["train/train_rollout_logprob_abs_diff", "train/train_rollout_logprob_abs_diff/max"], "train/train_rollout_logprob_abs_diff"],
  ["Throughput", ["perf/tokens_per_gpu_per_sec"], "perf/tokens_per_gpu_per_sec"],
  ["Step time and waiting", ["perf/step_time", "perf/wait_time"], "perf/step_time"],
  ["Queue", ["stream/in_flight", "stream/groups_occupied"], "stream/in_flight"],
  ["Lag of samples", ["rollout/staleness/avg", "rollout/staleness/max"], "rollout/staleness/avg"],
];
const EVENTS_LISTED = 60;

export async function overview(main, context) {
  const definitions = new Map((await get("definitions")).map((metric) => [metric.name, metric]));
  const tiles = el("div", { class: "tiles" });
  const engines = el("section", { class: "card wide" });
  const phases = el("section", { class: "card wide" });
  const lag = el("section", { class: "card" });
  const events = el("section", { class: "card wide" });
  const other = el("div");
  const charts = CHARTS.map(([title, , defined]) => new LineChart(title, definitions.get(defined)?.unit, definitions.get(defined)?.meaning));
  main.replaceChildren(el("h1", {}, "Overview"), tiles, el("div", { class: "cards" },
    ...charts.map((chart) => chart.card), lag, phases, engines, events, other));
  other.className = "card wide";

  async function refresh() {
    const run = context.run();
    const [now, series] = await Promise.all([get("overview", { run }), get("series", { run, metric: CHARTS.flatMap(([, metrics]) => metrics) })]);
    context.status(now);
    tiles.replaceChildren(...figures(now));
    CHARTS.forEach(([, patterns], i) => charts[i].show(Object.fromEntries(
      patterns.flatMap((pattern) => Object.entries(series).filter(([name]) => matches(pattern, name))))));
    await showLag(lag, run);
    const done = await get("phases", { run });
    phases.replaceChildren(el("h2", {}, "Phases", el("span", {}, "the last of them; hold the pointer over one")), done.length ? gantt(recent(done)) : el("p", { class: "quiet" }, "None yet."));
    engines.hidden = !now.state.engines?.length && !Object.keys(now.state.roles ?? {}).length;
    engines.replaceChildren(el("h2", {}, "Engines and roles", el("span", {}, `as of ${time(now.state.seen ?? now.state.time)}`)), ...enginesAndRoles(now.state));
    const listed = now.events.slice(-EVENTS_LISTED).reverse();
    events.replaceChildren(el("h2", {}, "Events"), listed.length ? table(["time", "role", "what", "details"], listed.map(eventRow), "Events") : el("p", { class: "quiet" }, "None yet."));
    if (!other.childElementCount) explorer(other, now.metrics, definitions, context);
  }
  await refresh();
  return { refresh, redraw: () => charts.forEach((chart) => chart.redraw()) };
}

function matches(pattern, name) {
  return pattern.endsWith("*") ? name.startsWith(pattern.slice(0, -1)) : name === pattern;
}

function figures(now) {
  const last = now.last;
  const shown = [
    ["status", now.status], ["step", `${number(now.step === null ? 0 : now.step + 1)}${now.num_steps ? ` of ${number(now.num_steps)}` : ""}`],
    ["reward", number(last["rollout/raw_reward"])], ["tokens/s a device", number(last["perf/tokens_per_gpu_per_sec"], 3)],
    ["step time, s", number(last["perf/step_time"], 3)], ["waiting for samples", last["perf/wait_time_ratio"] === undefined ? "–" : `${number(100 * last["perf/wait_time_ratio"], 2)} %`],
    ["largest lag, versions", number(last["rollout/staleness/max"])], ["weight version", number(last["stream/weight_version"])],
    ["weights sent", last["weight_sync/bytes"] === undefined ? "–" : bytes(last["weight_sync/bytes"])],
  ];
  return shown.map(([name, value]) => el("div", { class: "tile" }, el("b", {}, value), el("span", {}, name)));
}

async function showLag(card, run) {
  const found = await get("series", { run, metric: "rollout/staleness/count/*" });
  const counts = Object.entries(found).map(([name, one]) => [name.split("/").at(-1), one.values.reduce((a, b) => a + b, 0)]);
  counts.sort((a, b) => a[0] - b[0]);
  card.hidden = !counts.length;
  card.replaceChildren(el("h2", {}, "Trained samples by lag", el("span", {}, "weight versions")), bars(counts, "Trained samples by lag in weight versions"));
}

function recent(phases) {
  const steps = [...new Set(phases.filter((phase) => phase.role === "actor").map((phase) => phase.step))].sort((a, b) => a - b).slice(-4);
  const first = steps.length ? Math.min(...phases.filter((phase) => phase.role === "actor" && phase.step === steps[0]).map((phase) => phase.start)) : 0;
  const last = phases.filter((phase) => phase.start >= first);
  return last.length ? last : phases.slice(-200);
}

function enginesAndRoles(state) {
  const parts = [];
  if (state.engines?.length) parts.push(table(["engine", "origin", "weight version", "samples in flight", "state"],
    state.engines.map((engine) => [engine.url, engine.origin, engine.version, engine.outstanding, engine.out_of_service ?? "serving"]), "Engines"));
  const roles = Object.entries(state.roles ?? {});
  if (roles.length) parts.push(table(["role", "step", "restarts", "waits for"],
    roles.map(([name, role]) => [name, role.step, role.restarts, role.waiting.map((wait) => `${wait.for}, ${number(wait.seconds, 3)} s`).join("; ") || "nothing"]), "Roles"));
  return parts;
}

function eventRow(event) {
  const { time: when, role, kind, ...rest } = event;
  return [time(when), role ?? "", kind.replaceAll("_", " "), Object.entries(rest).map(([name, value]) => `${name}: ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ")];
}

function explorer(card, metrics, definitions, context) {
  const chart = new LineChart("Metric");
  const choice = el("select", { "aria-label": "Metric to show", onchange: show }, ...metrics.map((name) => el("option", {}, name)));
  async function show() {
    chart.show(await get("series", { run: context.run(), metric: choice.value }));
    meaning.textContent = definitions.get(choice.value)?.meaning ?? "";
  }
  const meaning = el("p", { class: "quiet" });
  chart.card.className = "";
  card.replaceChildren(el("h2", {}, "Any metric", choice), meaning, chart.card);
  if (metrics.length) show();
}
