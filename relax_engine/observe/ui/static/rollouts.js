// Samples: a filtered, sorted list, and one sample with its tokens coloured by what the engine or the trainer says of them.
import { get } from "./api.js";
import { el, labelled, number, table } from "./dom.js";
import { media } from "./media.js";

const COLUMNS = ["step", "sample_index", "group_index", "status", "reward", "advantage", "response_length", "response"];
const PAGE = 50;
const COLOURS = [
  ["log_probs", "log-prob when sampled"], ["train_log_probs", "log-prob when trained"], ["advantages", "advantage"], ["loss_mask", "loss mask"],
];

export async function rollouts(main, context, parameters) {
  const state = { where: parameters.get("where") ?? "", sort: parameters.get("sort") ?? "step:desc", offset: Number(parameters.get("offset") ?? 0) };
  const fields = await get("fields");
  const where = el("input", { name: "where", value: state.where, placeholder: "reward>0.5 & status=truncated & response~word", spellcheck: "false", list: "fields" });
  const options = [...fields.numbers, ...fields.texts];
  const sort = el("select", { name: "sort" }, ...options.flatMap((name) => [`${name}:desc`, name].map((value) =>
    el("option", { value, selected: value === state.sort }, value.endsWith(":desc") ? `${name}, largest first` : `${name}, smallest first`))));
  const form = el("form", { role: "search", onsubmit: (event) => { event.preventDefault(); go({ where: where.value, sort: sort.value, offset: 0 }); } },
    labelled("Filters, joined by &", where, { class: "field grow" }), labelled("Sorted by", sort), el("button", {}, "Search"),
    el("datalist", { id: "fields" }, ...options.map((name) => el("option", { value: name }))));
  const help = el("details", {}, el("summary", {}, "Fields and operators"),
    el("p", { class: "quiet" }, `Numbers with = != < <= > >= and step=10..20: ${fields.numbers.join(", ")}, reward.NAME. Texts with = != ~ (contains) !~: ${fields.texts.join(", ")}.`));
  const list = el("div", { "aria-live": "polite" });
  main.replaceChildren(el("h1", {}, "Samples"), form, help, list);

  function go(changes) {
    const next = new URLSearchParams({ run: context.run(), ...state, ...changes });
    location.hash = `#/rollouts?${next}`;
  }

  async function refresh() {
    const run = context.run();
    const terms = state.where.split("&").map((term) => term.trim()).filter(Boolean);
    try {
      const found = await get("rollouts", { run, where: terms, sort: state.sort, limit: PAGE, offset: state.offset });
      list.replaceChildren(results(found, state, go));
    } catch (error) {
      list.replaceChildren(el("p", { class: "error", role: "alert" }, error.message));
    }
  }
  await refresh();
  return { refresh: state.offset === 0 && !list.contains(document.activeElement) ? refresh : null };
}

function results(found, state, go) {
  const header = COLUMNS.map((name) => {
    const now = state.sort.replace(":desc", "") === name;
    const descending = state.sort.endsWith(":desc");
    const text = name === "sample_index" || found.rows.some((row) => typeof (row[name] ?? 0) !== "number");
    return el("th", { scope: "col", class: text ? null : "number", "aria-sort": now ? (descending ? "descending" : "ascending") : null },
      el("button", { type: "button", onclick: () => go({ sort: now && descending ? name : `${name}:desc`, offset: 0 }) }, name.replaceAll("_", " ") + (now ? (descending ? " ▾" : " ▴") : "")));
  });
  const rows = found.rows.map((row) => el("tr", { class: "link" }, ...COLUMNS.map((name) => {
    const value = row[name];
    if (name === "sample_index") return el("td", {}, el("a", { href: `#/sample?step=${row.step}&index=${row.sample_index}` }, String(value)));
    return el("td", { class: typeof value === "number" ? "number" : "text" }, typeof value === "number" ? number(value) : value ?? "–");
  })));
  const last = Math.min(state.offset + PAGE, found.count);
  return el("div", {},
    el("p", { class: "quiet" }, `${number(found.count)} samples${found.count ? `, ${number(state.offset + 1)} to ${number(last)}` : ""}`),
    el("div", { class: "scroll" }, el("table", { "aria-label": "Samples" }, el("thead", {}, el("tr", {}, ...header)), el("tbody", {}, ...rows))),
    el("p", {},
      el("button", { type: "button", disabled: state.offset === 0, onclick: () => go({ offset: Math.max(0, state.offset - PAGE) }) }, "Previous"), " ",
      el("button", { type: "button", disabled: last >= found.count, onclick: () => go({ offset: state.offset + PAGE }) }, "Next")));
}

export async function sample(main, context, parameters) {
  const run = context.run();
  const found = await get("sample", { run, step: parameters.get("step"), index: parameters.get("index") });
  const start = found.prompt_length;
  const texts = found.texts.slice(start);
  const available = COLOURS.filter(([name]) => found[name]);
  const tokens = el("div", { class: "tokens", id: "tokens", lang: "" });
  const legend = el("p", { class: "legend" });
  const choice = el("select", { onchange: () => paint() }, ...available.map(([name, label]) => el("option", { value: name }, label)));
  const facts = ["status", "reward", "normalized_reward", "advantage", "kl", "log_prob_gap", "age", "response_length", "trained_length", "mean_log_prob", "first_version", "last_version", "abort_count", "engine", "label"];
  main.replaceChildren(
    el("p", {}, el("a", { href: "#/rollouts" }, "← Samples")),
    el("h1", {}, `Sample ${found.sample_index} of step ${found.step}`),
    el("div", { class: "split" },
      el("section", { class: "card" }, el("h2", {}, "Conversation"), ...messages(found.prompt),
        el("div", { class: "message" }, el("b", {}, "response"), el("div", { id: "response" }, found.response)),
        el("h2", { class: "later" }, "Tokens of the response", labelled("coloured by", choice)), legend, tokens),
      el("div", { class: "stack" },
        found.media.length ? media(run, found.media) : null,
        el("section", { class: "card" }, el("h2", {}, "Figures"), table(["figure", "value"], [...facts.filter((name) => found[name] !== null && found[name] !== undefined).map((name) => [name.replaceAll("_", " "), found[name]]), ...Object.entries(found.reward_parts ?? {}).map(([name, value]) => [`reward: ${name}`, value])], "Figures")),
        el("section", { class: "card" }, el("h2", {}, "Times"), table(["stretch", "seconds"], times(found), "Times")),
        el("section", { class: "card" }, el("h2", {}, "Same prompt"), siblings(found)))),
    el("details", { class: "card" }, el("summary", {}, "Metadata and weight versions"), el("pre", {}, `${found.metadata ?? ""}\n${JSON.stringify(found.spans)}`)));

  function paint() {
    const name = choice.value;
    const values = found[name] ?? [];
    const known = values.filter((value) => value !== null);
    const largest = Math.max(1e-9, ...known.map(Math.abs));
    tokens.replaceChildren(...texts.map((text, i) => token(text, values[i], name, largest, found, i)));
    legend.textContent = name === "loss_mask" ? "Struck through: not in the loss." : name === "advantages" ? `Blue: positive, red: negative; full colour is ${number(largest)}.` : `The redder, the less likely; full colour is ${number(-largest)}.`;
  }
  if (available.length) paint();
  return {};
}

function token(text, value, name, largest, found, position) {
  const mask = found.loss_mask[position];
  const span = el("span", { class: mask ? null : "masked", title: `token ${position}: ${COLOURS.map(([key, label]) => found[key] ? `${label} ${number(found[key][position])}` : null).filter(Boolean).join(", ")}` }, text);
  if (value === null || value === undefined) return span;
  if (name === "loss_mask") { if (!mask) span.style.backgroundColor = "var(--masked)"; return span; }
  const hue = name === "advantages" && value > 0 ? "--high" : "--low";
  span.style.backgroundColor = `rgba(var(${hue}), ${(0.55 * Math.abs(value)) / largest})`;
  return span;
}

function messages(prompt) {
  let turns = null;
  try { turns = JSON.parse(prompt); } catch { /* a plain text */ }
  if (!Array.isArray(turns)) turns = [{ role: "prompt", content: prompt }];
  return turns.map((turn) => el("div", { class: "message" }, el("b", {}, String(turn.role ?? "")), el("div", {}, typeof turn.content === "string" ? turn.content : JSON.stringify(turn.content, null, 1))));
}

function times(found) {
  const spans = [["from admission to sampling", "admitted", "started"], ["generation", "started", "generated"], ["reward", "generated", "scored"],
    ["wait for its place", "scored", "placed"], ["wait for the trainer", "placed", "trained"]];
  return spans.filter(([, a, b]) => found[a] && found[b]).map(([name, a, b]) => [name, found[b] - found[a]]);
}

function siblings(found) {
  const rows = found.group.map((row) => [
    row.sample_index === found.sample_index ? String(row.sample_index) : el("a", { href: `#/sample?step=${row.step}&index=${row.sample_index}` }, String(row.sample_index)),
    row.reward, row.advantage, row.response.slice(0, 60)]);
  return table(["sample", "reward", "advantage", "response"], rows, "Samples of the same prompt");
}
