// The face of RankPanel: a table that is changed in place, so that focus stays on the button that has it.
let made = 0;

const HEAD = ["rank", "state", "for", "at", "waits in", "memory", "GPU"];
const MARKS = {
  idle: "○", running: "▶", waiting: "◔", collective: "⇄", store: "⇄", joining: "⇄",
  finished: "✓", failed: "✗", silent: "?", dead: "✗",
};

function make(kind, attributes = {}, ...children) {
  const element = document.createElement(kind);
  Object.assign(element, attributes);
  element.append(...children);
  return element;
}

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function render({ model, el }) {
  const id = `kit-ranks-${++made}`;
  el.classList.add("kit-view", "kit-ranks");
  const title = make("b", { id: `${id}-title` });
  const interrupt = make("button", { type: "button", textContent: "Interrupt", title: "Stop the call that runs" });
  const stacks = make("button", { type: "button", textContent: "Stacks", title: "Show every line of every rank" });
  stacks.setAttribute("aria-expanded", "false");
  stacks.setAttribute("aria-controls", `${id}-stacks`);
  const table = make("table", {}, make("thead", {}, make("tr", {}, ...HEAD.map(headOf))));
  table.setAttribute("aria-labelledby", `${id}-title`);
  const body = make("tbody");
  table.append(body);
  const sentence = make("p", { className: "kit-ranks-sentence" });
  const said = make("p", { className: "kit-ranks-said" });
  said.setAttribute("role", "status");
  const lines = make("pre", { id: `${id}-stacks`, hidden: true, tabIndex: 0 });
  lines.setAttribute("aria-label", "Stacks");
  el.append(make("div", { className: "kit-ranks-bar" }, title, interrupt, stacks));
  el.append(make("div", { className: "kit-ranks-frame" }, table), sentence, said, lines);

  const rows = new Map(); // rank -> { line, cells, replace }

  function headOf(text) {
    return make("th", { scope: "col", textContent: text });
  }

  function rowOf(rank) {
    if (rows.has(rank)) return rows.get(rank);
    const cells = HEAD.map((_, place) => make(place === 0 ? "th" : "td"));
    cells[0].scope = "row";
    cells[3].append(make("span", { className: "kit-ranks-place" }), make("code"));
    const replace = make("button", { type: "button", textContent: "Replace", title: `Start rank ${rank} anew` });
    replace.setAttribute("aria-label", `Replace rank ${rank}`);
    replace.addEventListener("click", () => {
      replace.disabled = true;
      model.send({ press: "replace", rank });
    });
    cells[1].append(make("span"), replace);
    const made = { line: make("tr", {}, ...cells), cells, replace };
    rows.set(rank, made);
    body.append(made.line);
    return made;
  }

  function showRows() {
    const told = model.get("rows");
    for (const [rank, row] of rows) {
      if (!told.some((one) => one.rank === rank)) {
        row.line.remove();
        rows.delete(rank);
      }
    }
    for (const one of told) {
      const { line, cells, replace } = rowOf(one.rank);
      line.dataset.kind = one.kind;
      put(cells[0], String(one.rank));
      put(cells[1].children[0], `${MARKS[one.kind] ?? ""} ${one.state}`);
      put(cells[2], one.seconds);
      put(cells[3].children[0], one.place);
      put(cells[3].children[1], one.code);
      put(cells[4], one.waits);
      put(cells[5], one.memory);
      put(cells[6], one.gpu);
      replace.hidden = !one.dead;
      if (!one.dead) replace.disabled = false;
    }
    const stack = (one) => one.stack.map((text) => `    ${text}`).join("\n") || "    (no line of yours)";
    put(lines, told.map((one) => `rank ${one.rank}: ${one.state}\n${stack(one)}`).join("\n"));
    table.hidden = told.length === 0;
    table.classList.toggle("without-gpu", told.every((one) => one.gpu === ""));
  }

  const showTitle = () => put(title, model.get("title"));
  const showSentence = () => put(sentence, model.get("sentence"));
  const showSaid = () => {
    put(said, model.get("said"));
    for (const row of rows.values()) row.replace.disabled = false;
  };
  const showCall = () => { interrupt.disabled = model.get("call") === 0; };

  // JupyterLab in command mode would take Enter for itself.
  el.addEventListener("keydown", (event) => event.stopPropagation());
  interrupt.addEventListener("click", () => model.send({ press: "interrupt", call: model.get("call") }));
  stacks.addEventListener("click", () => {
    lines.hidden = !lines.hidden;
    stacks.setAttribute("aria-expanded", String(!lines.hidden));
  });
  const watched = [["rows", showRows], ["title", showTitle], ["sentence", showSentence], ["said", showSaid], ["call", showCall]];
  for (const [name, show] of watched) {
    model.on(`change:${name}`, show);
    show();
  }
  return () => { for (const [name, show] of watched) model.off(`change:${name}`, show); };
}

export default { render };
