// Which page is shown, for which run, in which theme; and asking again while a run goes on.
import { Refused, Unreachable, get, takeToken, useToken } from "./api.js";
import { config } from "./config.js";
import { el, labelled, number } from "./dom.js";
import { lineage } from "./lineage.js";
import { overview } from "./overview.js";
import { rollouts, sample } from "./rollouts.js";

const PAGES = { "": ["Overview", overview], rollouts: ["Samples", rollouts], lineage: ["Lineage", lineage], config: ["Configuration", config], sample: [null, sample] };
const EVERY_MS = 2000;
const LIVE = ["running", "starting"];

const main = document.getElementById("main");
const choice = document.getElementById("run");
const notes = document.getElementById("notes");
const statusLine = document.getElementById("status");
const themeButton = document.getElementById("theme");
let runs = [];
let page = {};
let shown = 0; // pages asked for so far: what an earlier one still has under way is not shown any more
let live = false;
let silentSince = null; // when the server stopped answering
let broken = false; // the page could not be drawn, because the server was silent
let ticks = 0;

const context = {
  run: () => choice.value,
  runs: () => runs,
  status(now) {
    live = LIVE.includes(now.status);
    say(`${now.status}${now.step === null ? "" : `, step ${number(now.step)}`}`);
  },
};

function say(text) {
  if (statusLine.textContent !== text) statusLine.textContent = text;
}

// The address names page, run and what is asked for, so that it can be kept, sent on and reloaded.
function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return [path, new URLSearchParams(query ?? "")];
}

function takeRun(parameters) {
  const wanted = parameters.get("run");
  if (wanted !== null && runs.some((run) => run.id === wanted)) choice.value = wanted;
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("relax-theme", theme);
  themeButton.setAttribute("aria-pressed", String(theme === "dark"));
  page.redraw?.();
}

async function show() {
  const [path, parameters] = place();
  takeRun(parameters);
  parameters.set("run", choice.value);
  history.replaceState(null, "", `#/${path}?${parameters}`);
  const [, draw] = PAGES[path] ?? PAGES[""];
  document.getElementById("nav").replaceChildren(...Object.entries(PAGES).filter(([, [title]]) => title).map(([name, [title]]) =>
    el("a", { href: `#/${name}`, "aria-current": name === path ? "page" : null }, title)));
  const mine = ++shown;
  const root = el("div");
  page = {};
  main.replaceChildren(root);
  try {
    const drawn = await draw(root, context, parameters);
    if (mine !== shown) return;
    page = drawn;
    broken = false;
    document.title = `${main.querySelector("h1")?.textContent ?? "relax"} – ${choice.value}`;
  } catch (error) {
    if (mine === shown) fail(error);
  }
}

function fail(error) {
  page = {};
  broken = error instanceof Unreachable;
  if (broken) silentSince ??= new Date();
  if (!(error instanceof Refused)) {
    main.replaceChildren(el("p", { class: "error", role: "alert" }, error.message));
    return;
  }
  const input = el("input", { type: "password", autocomplete: "off", required: true });
  main.replaceChildren(el("h1", {}, "Token needed"), el("p", { class: "error", role: "alert" }, error.message),
    el("form", { onsubmit: (event) => { event.preventDefault(); useToken(input.value); start(); } }, labelled("Token", input), el("button", {}, "Open")));
}

async function start() {
  try {
    runs = await get("runs");
  } catch (error) {
    return fail(error);
  }
  list();
  if (!runs.length) return fail(new Error("There is no run here yet."));
  takeRun(place()[1]);
  showStatus();
  await show();
}

function list() {
  const chosen = choice.value;
  choice.replaceChildren(...runs.map((run) => el("option", { value: run.id }, run.id)));
  if (runs.some((run) => run.id === chosen)) choice.value = chosen;
}

function showStatus() {
  const now = runs.find((run) => run.id === choice.value);
  if (now) context.status(now);
}

// Every two seconds while a run goes on or the server is silent, else every ten: new runs come too.
async function again() {
  const due = live || silentSince !== null || (ticks += 1) % 5 === 0;
  if (due && !document.hidden) {
    try {
      const now = await get("runs");
      const known = runs.map((run) => run.id).join();
      runs = now;
      if (now.map((run) => run.id).join() !== known) list();
      const was = live;
      showStatus();
      if (silentSince !== null) noteSilence();
      if (broken) await start();
      else if (live || was) await page.refresh?.();
    } catch (error) {
      if (error instanceof Unreachable) silentSince ??= new Date();
      say(silentSince === null ? error.message : `no answer since ${silentSince.toLocaleTimeString("en-GB")}, asking again`);
    }
  }
  setTimeout(again, EVERY_MS);
}

function noteSilence() {
  const text = `The dashboard's server did not answer from ${silentSince.toLocaleTimeString("en-GB")} to ${new Date().toLocaleTimeString("en-GB")}. What the run did meanwhile is shown.`;
  silentSince = null;
  notes.replaceChildren(el("p", { class: "note" }, text, " ", el("button", { type: "button", onclick: () => notes.replaceChildren() }, "Dismiss")));
}

takeToken();
setTheme(localStorage.getItem("relax-theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
themeButton.addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
choice.addEventListener("change", () => {
  const [path, parameters] = place();
  parameters.set("run", choice.value);
  showStatus();
  location.hash = `#/${path}?${parameters}`;
});
addEventListener("hashchange", () => { show().then(() => main.focus({ preventScroll: true })); scrollTo(0, 0); });
await start();
setTimeout(again, EVERY_MS);
