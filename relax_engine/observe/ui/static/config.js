// The configuration of a run, and two runs beside each other.
import { get } from "./api.js";
import { LineChart } from "./charts.js";
import { el, labelled, table } from "./dom.js";

const COMPARED = ["rollout/raw_reward", "train/loss", "train/grad_norm", "rollout/response_len/mean", "perf/step_time", "train/ppo_kl"];
const text = (value) => (value === undefined ? "–" : typeof value === "string" ? value : JSON.stringify(value));

export async function config(main, context, parameters) {
  const run = context.run();
  const other = parameters.get("with") ?? "";
  const choice = el("select", { onchange: () => { location.hash = choice.value ? `#/config?with=${encodeURIComponent(choice.value)}` : "#/config"; } },
    el("option", { value: "" }, "no other run"), ...context.runs().filter((one) => one.id !== run).map((one) => el("option", { value: one.id, selected: one.id === other }, one.id)));
  const parts = [el("h1", {}, "Configuration"), el("form", {}, labelled("Beside", choice))];
  const ours = await get("config", { run });
  if (!other) {
    const names = Object.keys(ours).sort();
    main.replaceChildren(...parts, el("section", { class: "card" }, table(["flag", "value"], names.map((name) => [name, text(ours[name])]), "Configuration")));
    return {};
  }
  const theirs = await get("config", { run: other });
  const names = [...new Set([...Object.keys(ours), ...Object.keys(theirs)])].sort().filter((name) => text(ours[name]) !== text(theirs[name]));
  const charts = COMPARED.map((name) => [name, new LineChart(name)]);
  main.replaceChildren(...parts, el("section", { class: "card" }, el("h2", {}, "What differs"),
    names.length ? table(["flag", run, other], names.map((name) => [name, text(ours[name]), text(theirs[name])]), "Differences") : el("p", {}, "Nothing.")),
    el("div", { class: "cards" }, ...charts.map(([, chart]) => chart.card)));
  const [left, right] = await Promise.all([run, other].map((one) => get("series", { run: one, metric: COMPARED })));
  for (const [name, chart] of charts) {
    chart.show(Object.fromEntries([[run, left[name]], [other, right[name]]].filter(([, series]) => series)));
  }
  return { redraw: () => charts.forEach(([, chart]) => chart.redraw()) };
}
