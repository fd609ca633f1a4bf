// Which page is shown, for which run, in which theme; and asking again while a run goes on.
import { Refused, get, takeToken, useToken } from "./api.js";
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
const statusLine = document.getElementById("status");
const themeButton = document.getElementById("theme");
let runs = [];
let page = {};
let shown = 0; // pages asked for so far: what an earlier one still has under way is not shown any more
let live = false;

const context = {
  run: () => choice.value,
  runs: () => runs,
  status(now) {
    live = LIVE.includes(now.status);
    const text = `${now.status}${now.step === null ? "" : `, step ${number(now.step)}`}`;
    if (statusLine.textContent !== text) statusLine.textContent = text;
  },
};

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("relax-theme", theme);
  themeButton.setAttribute("aria-pressed", String(theme === "dark"));
  page.redraw?.();
}

async function show() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [, draw] = PAGES[path] ?? PAGES[""];
  document.getElementById("nav").replaceChildren(...Object.entries(PAGES).filter(([, [title]]) => title).map(([name, [title]]) =>
    el("a", { href: `#/${name}`, "aria-current": name === path ? "page" : null }, title)));
  const mine = ++shown;
  const root = el("div");
  page = {};
  main.replaceChildren(root);
  try {
    const drawn = await draw(root, context, new URLSearchParams(query ?? ""));
    if (mine !== shown) return;
    page = drawn;
    document.title = `${main.querySelector("h1")?.textContent ?? "relax"} – ${choice.value}`;
  } catch (error) {
    if (mine === shown) fail(error);
  }
}

function fail(error) {
  page = {};
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
  choice.replaceChildren(...runs.map((run) => el("option", { value: run.id }, run.id)));
  if (!runs.length) return fail(new Error("There is no run here yet."));
  context.status(runs[0]);
  await show();
}

async function again() {
  if (live && page.refresh && !document.hidden) {
    try { await page.refresh(); } catch (error) { statusLine.textContent = `no answer: ${error.message}`; }
  }
  setTimeout(again, EVERY_MS);
}

takeToken();
setTheme(localStorage.getItem("relax-theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
themeButton.addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
choice.addEventListener("change", async () => { context.status((await get("runs")).find((run) => run.id === choice.value)); show(); });
addEventListener("hashchange", () => { show().then(() => main.focus({ preventScroll: true })); scrollTo(0, 0); });
await start();
setTimeout(again, EVERY_MS);
