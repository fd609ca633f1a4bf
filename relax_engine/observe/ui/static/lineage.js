// An artifact with all that it was made from and all that was made from it.
import { get } from "./api.js";
import { bytes, el, labelled, number, svg, table } from "./dom.js";

const [WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN] = [240, 74, 24, 40, 12];

export async function lineage(main, context, parameters) {
  const artifacts = await get("artifacts");
  if (!artifacts.length) {
    main.replaceChildren(el("h1", {}, "Lineage"), el("p", {}, "There is no artifact store here. `relax ui --store URL` names one."));
    return {};
  }
  const ref = parameters.get("ref") ?? (artifacts.find((one) => one.kind === "model") ?? artifacts[0]).ref;
  const choice = el("select", { onchange: () => { location.hash = `#/lineage?ref=${encodeURIComponent(choice.value)}`; } },
    ...artifacts.map((one) => el("option", { value: one.ref, selected: one.ref === ref }, `${one.ref} (${one.kind})`)));
  const found = await get("lineage", { ref });
  const subject = found.nodes.find((node) => node.ref === found.subject);
  main.replaceChildren(el("h1", {}, "Lineage"), el("form", {}, labelled("Artifact", choice)),
    el("section", { class: "card" }, el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Lineage graph" }, graph(found))),
    el("section", { class: "card", id: "artifact" }, el("h2", {}, subject.ref, el("span", {}, subject.kind)),
      table(["figure", "value"], [["digest", subject.digest], ["created", subject.created_at], ["commit", subject.commit ?? "–"], ...Object.entries(subject.metrics)], "Artifact"),
      el("details", {}, el("summary", {}, "Files"), table(["file", "size"], subject.files.map((file) => [file.path, bytes(file.size)]), "Files"))));
  return {};
}

function graph(found) {
  const rows = new Map();
  const places = new Map();
  for (const node of [...found.nodes].sort((a, b) => a.created_at.localeCompare(b.created_at))) {
    const column = rows.get(node.row) ?? 0;
    rows.set(node.row, column + 1);
    places.set(node.ref, { x: MARGIN + column * (WIDTH + GAP_X), y: MARGIN + node.row * (HEIGHT + GAP_Y) });
  }
  const width = Math.max(...[...places.values()].map((place) => place.x)) + WIDTH + MARGIN;
  const height = Math.max(...[...places.values()].map((place) => place.y)) + HEIGHT + MARGIN;
  const edges = found.edges.map(([parent, child]) => {
    const [a, b] = [places.get(parent), places.get(child)];
    const [x1, y1, x2, y2] = [a.x + WIDTH / 2, a.y + HEIGHT, b.x + WIDTH / 2, b.y];
    return svg("path", { class: "edge", d: `M${x1} ${y1} C${x1} ${(y1 + y2) / 2} ${x2} ${(y1 + y2) / 2} ${x2} ${y2}` });
  });
  const boxes = found.nodes.map((node) => {
    const { x, y } = places.get(node.ref);
    const figures = Object.entries(node.metrics).slice(0, 2).map(([name, value]) => `${name.replaceAll("_", " ")} ${number(value, 3)}`);
    return svg("a", { href: `#/lineage?ref=${encodeURIComponent(node.ref)}`, class: node.ref === found.subject ? "node subject" : "node", "aria-label": `${node.kind} ${node.ref}` },
      svg("rect", { x, y, width: WIDTH, height: HEIGHT, rx: 8 }),
      svg("text", { x: x + 10, y: y + 18 }, `${node.kind}  ${node.digest}`),
      svg("text", { x: x + 10, y: y + 34, "font-weight": 600 }, node.ref),
      ...figures.map((figure, i) => svg("text", { x: x + 10, y: y + 50 + 15 * i }, figure)));
  });
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` }, ...edges, ...boxes);
}
