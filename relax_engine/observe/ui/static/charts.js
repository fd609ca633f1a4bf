// Line charts (uPlot), the Gantt chart and bars; each with its numbers as a table for those who see no chart.
import { el, number, svg, table } from "./dom.js";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function aligned(series) {
  const steps = [...new Set(Object.values(series).flatMap((one) => one.steps))].sort((a, b) => a - b);
  const columns = Object.values(series).map((one) => {
    const values = new Map(one.steps.map((step, i) => [step, one.values[i]]));
    return steps.map((step) => values.get(step) ?? null);
  });
  return [steps, ...columns];
}

// Names without what all of them begin with: `rollout/response_len/mean` and `.../max` are `mean` and `max`.
function short(names) {
  const parts = names.map((name) => name.split("/"));
  let same = 0;
  while (names.length > 1 && parts.every((one) => one.length > same + 1 && one[same] === parts[0][same])) same += 1;
  return parts.map((one) => one.slice(same).join("/"));
}

export class LineChart {
  constructor(title, unit = "", meaning = "") {
    this.title = title;
    this.now = el("span");
    this.plot = el("div", { role: "img" });
    this.numbers = el("div");
    this.details = el("details", { ontoggle: () => this.tabulate() }, el("summary", {}, "Numbers"), this.numbers);
    this.card = el("section", { class: "card", title: meaning || null }, el("h2", {}, title, this.now), this.plot, this.details);
    this.unit = unit;
    new ResizeObserver(() => this.chart?.setSize(this.size())).observe(this.plot);
  }

  size() { return { width: Math.max(200, this.plot.clientWidth || 340), height: 190 }; }

  show(series) {
    this.series = series;
    const names = Object.keys(series);
    this.card.hidden = names.length === 0;
    if (!names.length) return;
    const data = aligned(series);
    const last = names.map((name) => series[name].values.at(-1));
    this.labels = short(names);
    this.data = data;
    this.sayLast();
    this.plot.setAttribute("aria-label", `${this.title}: ${names.map((name, i) => `${name} ${number(last[i])}`).join(", ")} at step ${data[0].at(-1)}`);
    const key = names.join();
    if (this.chart && this.key === key) this.chart.setData(data);
    else this.draw(names, data);
    this.key = key;
    this.tabulate();
  }

  sayLast() { this.now.textContent = `${number(this.series[Object.keys(this.series)[0]].values.at(-1))} ${this.unit}`; }

  // What stands under the pointer, in the place of the last value.
  sayAt(index) {
    if (index === null || index === undefined) { this.sayLast(); return; }
    const [steps, ...columns] = this.data;
    const values = columns.map((column, i) => `${columns.length > 1 ? `${this.labels[i]} ` : ""}${number(column[index])}`);
    this.now.textContent = `step ${number(steps[index])}: ${values.join(", ")}`;
  }

  draw(names, data) {
    this.chart?.destroy();
    const axis = { stroke: css("--quiet"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    this.chart = new uPlot({
      ...this.size(),
      scales: { x: { time: false } },
      legend: { show: names.length > 1, live: false },
      hooks: { setCursor: [(chart) => this.sayAt(chart.cursor.idx)] },
      cursor: { drag: { x: true, y: false } },
      axes: [{ ...axis, size: 28 }, { ...axis, size: 56, values: (_, ticks) => ticks.map((tick) => number(tick, 3)) }],
      series: [{ label: "step" }, ...names.map((name, i) => ({
        label: this.labels[i], stroke: css(`--series-${(i % 6) + 1}`), width: 1.75, spanGaps: true, value: (_, value) => number(value),
        points: { show: data[0].length < 40, size: 5 },
      }))],
    }, data, this.plot);
  }

  redraw() { if (this.series && Object.keys(this.series).length) { this.key = null; this.show(this.series); } }

  tabulate() {
    if (!this.details.open || !this.series) return;
    const [steps, ...columns] = aligned(this.series);
    const rows = steps.map((step, i) => [step, ...columns.map((column) => column[i])]).slice(-50).reverse();
    this.numbers.replaceChildren(table(["step", ...Object.keys(this.series)], rows, this.title));
  }
}

const HUES = [211, 28, 145, 275, 50, 340, 185, 95];

export function gantt(phases) {
  const lanes = [...new Set(phases.map((phase) => `${phase.role} / ${phase.name}`))].sort();
  const start = Math.min(...phases.map((phase) => phase.start));
  const end = Math.max(...phases.map((phase) => phase.end));
  const [left, width, row] = [170, 1400, 20];
  const x = (moment) => left + ((moment - start) / Math.max(end - start, 1e-6)) * (width - left - 10);
  const height = lanes.length * row + 26;
  const roles = [...new Set(phases.map((phase) => phase.role))].sort();
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => start + share * (end - start));
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "gantt", role: "img",
    "aria-label": `What each role did over the last ${number(end - start, 3)} seconds` },
    ...ticks.map((tick) => svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: 0, y2: height - 22 })),
    ...ticks.map((tick) => svg("text", { x: x(tick), y: height - 6, "text-anchor": tick === end ? "end" : "middle" }, `${number(tick - start, 3)} s`)),
    ...lanes.map((lane, i) => svg("text", { x: 0, y: i * row + 14 }, lane)),
    ...phases.map((phase) => svg("rect", {
      x: x(phase.start), y: lanes.indexOf(`${phase.role} / ${phase.name}`) * row + 3,
      width: Math.max(1, x(phase.end) - x(phase.start)), height: row - 6, rx: 2,
      fill: `hsl(${HUES[roles.indexOf(phase.role) % HUES.length]} 60% 52%)`, "fill-opacity": 0.8,
    }, svg("title", {}, `${phase.role} ${phase.name}, step ${phase.step}: ${number(phase.end - phase.start, 3)} s`))));
  return el("div", { class: "scroll", tabindex: 0, "aria-label": "Phases, scrolls sideways", role: "region" }, picture);
}

export function bars(counts, label) {
  const most = Math.max(...counts.map(([, count]) => count), 1);
  const drawn = counts.map(([name, count]) => {
    const bar = el("i");
    bar.style.height = `${(100 * count) / most}%`;
    return el("div", { class: "bar" }, number(count), bar, name);
  });
  return el("div", { class: "bars", role: "img", "aria-label": `${label}: ${counts.map(([name, count]) => `${name}: ${count}`).join(", ")}` }, ...drawn);
}
