// The face of TimelineView: toolbar, canvas, what is selected, and the table of a range.

const STEP_KEYS = 0.15;

/** A little HTML, made without parsing text: nothing of a trace can run. */
function make(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function column(model, name, Kind) {
  const view = model.get(name);
  return new Kind(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
}

/** Everything that the picture draws, from the traits. */
function dataOf(model) {
  const columns = {
    start: column(model, "start", Float64Array),
    duration: column(model, "duration", Float32Array),
    kind: column(model, "kind", Uint8Array),
    name: column(model, "name", Int32Array),
    row: column(model, "row", Int32Array),
  };
  const at = column(model, "memory_at", Float64Array);
  const bytes = column(model, "memory_bytes", Float64Array);
  const joined = column(model, "joined", Int32Array);
  const { start, duration } = columns;
  const joinStart = new Float64Array(joined.length / 2);
  let longestJoin = 0;
  for (let i = 0; i < joinStart.length; i++) {
    const [a, b] = [joined[2 * i], joined[2 * i + 1]];
    joinStart[i] = Math.min(start[a], start[b]);
    longestJoin = Math.max(longestJoin, Math.max(start[a] + duration[a], start[b] + duration[b]) - joinStart[i]);
  }
  const [first, last] = model.get("bounds");
  const margin = (last - first) * 0.005;
  return {
    columns, joined, joinStart, longestJoin,
    names: model.get("names"),
    looks: model.get("looks"),
    tracks: model.get("tracks").map((said) => (said.role === "memory" ? new Area(said, at, bytes) : new Track(said, columns))),
    axis: new Axis(first - margin, last + margin, 100),
  };
}

class TimelineFace {
  constructor(model, el) {
    this.model = model;
    this.selected = -1; // place in the columns; the trait holds the row of the timeline
    el.classList.add("kit-view", "kit-timeline");
    el.dataset.lmSuppressShortcuts = "true"; // JupyterLab's own keys would move, change or delete cells
    this.theme = new Theme(el, () => this.picture.surface.request());
    const data = dataOf(model);
    this.placeOf = new Map();
    data.columns.row.forEach((row, place) => { if (row >= 0) this.placeOf.set(row, place); });
    this.build(el, data);
    this.picture = new TimelinePicture(this.frame, data, {
      theme: () => this.theme,
      selected: () => this.selected,
      window: () => this.range ?? this.heldRange(),
      hosts: () => model.get("hosts"),
      most: () => model.get("height"),
    });
    this.gestures = new Gestures(this.canvas, this.heard());
    this.listen();
    this.showSelected();
    this.showDetails();
    this.showTable();
  }
  get axis() { return this.picture.axis; }
  get canvas() { return this.picture.surface.canvas; }

  build(el, data) {
    const button = (text, title, act) => make("button", { type: "button", textContent: text, title, onclick: act, ariaLabel: title });
    this.search = make("input", { type: "search", placeholder: "Search names", ariaLabel: "Search events by name" });
    this.count = make("span", { className: "kit-timeline-count" });
    this.hosts = make("input", { type: "checkbox", checked: this.model.get("hosts") });
    const bar = make("div", { className: "kit-timeline-bar" },
      this.search, button("\u2039", "Previous match", () => this.step(-1)), button("\u203a", "Next match", () => this.step(1)), this.count,
      button("+", "Zoom in", () => this.zoom(ZOOM_STEP)), button("\u2212", "Zoom out", () => this.zoom(1 / ZOOM_STEP)),
      button("Fit", "Show everything", () => this.fit()), button("Table of view", "Table of the visible range", () => this.holdVisible()));
    if (data.tracks.some((track) => track.role === "host")) bar.append(make("label", {}, this.hosts, "Host threads"));
    this.frame = make("div", { className: "kit-timeline-frame" });
    this.tip = make("div", { className: "kit-timeline-tip", hidden: true });
    this.frame.append(this.tip);
    const used = new Set(data.columns.kind);
    const legend = make("div", { className: "kit-timeline-legend" },
      ...data.looks.filter((_, kind) => used.has(kind)).map((look) => this.legendOf(look)),
      make("span", { className: "kit-timeline-join", textContent: "\u2215 same collective on the next rank" }));
    const help = make("details", { className: "kit-timeline-help" }, make("summary", { textContent: "Keys" }), make("span", {
      textContent: "\u2190 \u2192 move, \u2191 \u2193 scroll (or the row above and below what is selected), + \u2212 or Ctrl+wheel zoom, Home or f everything, " +
        "drag moves, Shift+drag a range, double click or z zooms to a box, Shift+\u2190 \u2192 previous and next box, Enter select, r table of the view, / search, Esc clears",
    }));
    this.details = make("dl", { className: "kit-timeline-details" });
    this.details.setAttribute("aria-live", "polite");
    this.table = make("div", { className: "kit-timeline-table" });
    el.append(bar, this.frame, legend, help, this.details, this.table);
  }
  legendOf(look) {
    const swatch = make("canvas", { width: 30, height: 14 });
    const ink = swatch.getContext("2d");
    ink.fillStyle = look.colour;
    if (look.pattern !== "empty") ink.fillRect(0, 0, 30, 14);
    new Painter([look]).pattern(ink, 0, 0, 0, 30, 14);
    return make("span", {}, swatch, look.word);
  }
  listen() {
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-label", this.model.get("description"));
    this.search.addEventListener("input", () => this.find());
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.step(event.shiftKey ? -1 : 1);
      if (event.key !== "Escape") return;
      this.search.value = "";
      this.find();
      this.canvas.focus();
    });
    this.hosts.addEventListener("change", () => { this.model.set("hosts", this.hosts.checked); this.model.save_changes(); });
    this.on = [
      ["change:selected", () => { this.showSelected(); this.showDetails(); }],
      ["change:details", () => this.showDetails()],
      ["change:table", () => this.showTable()],
      ["change:window", () => this.refresh()],
      ["change:hosts", () => { this.hosts.checked = this.model.get("hosts"); this.picture.lay(); this.find(); }],
      ["change:height", () => this.picture.lay()],
    ];
    for (const [name, act] of this.on) this.model.on(name, act);
    this.refresh();
  }
  end() {
    for (const [name, act] of this.on) this.model.off(name, act);
    this.theme.end();
    this.picture.surface.end();
  }

  heard() {
    return {
      zoom: (factor, at) => { this.axis.zoom(factor, Math.max(0, at.x - GUTTER)); this.refresh(); },
      pan: (x, y) => {
        if (x) this.axis.pan(x);
        const scrolled = y ? this.picture.scroll(y) : false;
        this.refresh();
        return x !== 0 || scrolled;
      },
      mark: (from, to, done) => this.mark(from, to, done),
      click: (at) => { this.canvas.focus(); this.select(this.picture.eventAt(at)); },
      doubleClick: (at) => this.zoomTo(this.picture.eventAt(at)),
      hover: (at) => this.hover(at),
      key: (key, shift) => this.key(key, shift),
    };
  }
  refresh() {
    const { axis } = this;
    this.frame.dataset.from = (axis.from / 1e6).toFixed(6); // for assistive tools and tests: what is shown, in ms
    this.frame.dataset.to = (axis.to / 1e6).toFixed(6);
    this.frame.dataset.selected = this.selected >= 0 ? this.picture.columns.row[this.selected] : -1;
    this.picture.surface.request();
  }
  zoom(factor) { this.axis.zoom(factor, this.axis.pixels / 2); this.refresh(); }
  fit() { this.axis.fit(); this.refresh(); }
  zoomTo(event) {
    if (event < 0) return;
    const { start, duration } = this.picture.columns;
    const room = Math.max(duration[event], 50);
    this.axis.show(start[event] - room, start[event] + duration[event] + room);
    this.refresh();
  }
  key(key, shift) {
    const { axis, picture } = this;
    const step = axis.pixels * STEP_KEYS;
    const chosen = this.selected >= 0;
    const acts = {
      ArrowLeft: () => (shift && chosen ? this.neighbour(-1) : (axis.pan(-step), this.refresh())),
      ArrowRight: () => (shift && chosen ? this.neighbour(1) : (axis.pan(step), this.refresh())),
      ArrowUp: () => (chosen ? this.nextRow(-1) : (picture.scroll(-24), this.refresh())),
      ArrowDown: () => (chosen ? this.nextRow(1) : (picture.scroll(24), this.refresh())),
      PageUp: () => { picture.scroll(-picture.surface.height / 2); this.refresh(); },
      PageDown: () => { picture.scroll(picture.surface.height / 2); this.refresh(); },
      "+": () => this.zoom(ZOOM_STEP),
      "=": () => this.zoom(ZOOM_STEP),
      "-": () => this.zoom(1 / ZOOM_STEP),
      Home: () => this.fit(),
      f: () => this.fit(),
      0: () => this.fit(),
      z: () => this.zoomTo(this.selected),
      r: () => this.holdVisible(),
      n: () => this.step(1),
      N: () => this.step(-1),
      "/": () => this.search.focus(),
      Enter: () => this.selectMiddle(),
      Escape: () => { this.hold([]); this.select(-1); },
    };
    const act = acts[key];
    if (act) act();
    return Boolean(act);
  }

  select(event) {
    this.selected = event;
    const row = event >= 0 ? this.picture.columns.row[event] : -1;
    if (row !== this.model.get("selected")) {
      this.model.set("selected", row);
      this.model.save_changes();
    }
    this.showDetails();
    this.refresh();
  }
  selectMiddle() {
    const { axis, picture } = this;
    const middle = (axis.from + axis.to) / 2;
    const at = picture.rows.find((row) => row.track.role === "stream" || row.track.role === "host");
    if (at) this.reveal(at.track.find(middle, axis.to - axis.from));
  }
  reveal(event) {
    if (event < 0) return;
    this.select(event);
    this.picture.reveal(event);
    this.refresh();
  }
  neighbour(by) {
    const track = this.picture.trackOf(this.selected);
    const next = this.selected + by;
    if (next >= track.first && next < track.first + track.count) this.reveal(next);
  }
  nextRow(by) {
    const { picture } = this;
    const { start, duration } = picture.columns;
    const at = start[this.selected] + duration[this.selected] / 2;
    let place = picture.rows.findIndex((row) => row.track === picture.trackOf(this.selected)) + by;
    for (; place >= 0 && place < picture.rows.length; place += by) {
      const { track } = picture.rows[place];
      if (track.role === "memory" || !track.count) continue;
      const found = Math.min(Math.max(lowerBound(start, track.first, track.last, at), track.first + 1), track.last) - 1;
      this.reveal(found);
      return;
    }
  }
  find() {
    const found = this.picture.search(this.search.value);
    this.hit = -1;
    this.count.textContent = this.search.value.trim() ? `${found.toLocaleString("en")} found` : "";
    this.refresh();
  }
  step(by) {
    const hits = this.picture.hits ?? [];
    if (!hits.length) return;
    this.hit = this.hit < 0 && by < 0 ? hits.length - 1 : (this.hit + by + hits.length) % hits.length;
    this.reveal(hits[this.hit]);
    this.count.textContent = `${this.hit + 1} of ${hits.length.toLocaleString("en")}`;
  }

  heldRange() {
    const held = this.model.get("window");
    return held.length === 2 ? held.map((ms) => ms * 1e6) : null;
  }
  hold(range) {
    this.range = null;
    this.model.set("window", range.map((ns) => ns / 1e6));
    this.model.save_changes();
    this.refresh();
  }
  holdVisible() { this.hold([this.axis.from, this.axis.to]); }
  mark(from, to, done) {
    const [left, right] = [from, to].map((x) => this.axis.value(Math.min(Math.max(x - GUTTER, 0), this.axis.pixels))).sort((a, b) => a - b);
    if (!done) {
      this.range = [left, right];
      this.refresh();
    } else if (right > left) this.hold([left, right]);
  }
  hover(at) {
    const event = at ? this.picture.eventAt(at) : -1;
    if (event !== this.picture.hovered) {
      this.picture.hovered = event;
      this.picture.surface.request();
    }
    const row = at && event < 0 ? this.picture.rowAt(at.y) : null;
    const memory = row?.track.role === "memory" && at.x > GUTTER ? row.track : null;
    this.tip.hidden = event < 0 && !memory;
    if (this.tip.hidden) return;
    this.tip.textContent = memory
      ? inBytes(memory.largest(this.axis.value(at.x - GUTTER), this.axis.value(at.x - GUTTER + 1)))
      : this.sayShort(event);
    const width = this.frame.clientWidth;
    this.tip.style.left = `${Math.min(at.x + 12, Math.max(0, width - this.tip.offsetWidth - 4))}px`;
    const below = at.y + 16 + this.tip.offsetHeight < this.frame.clientHeight;
    this.tip.style.top = `${below ? at.y + 16 : Math.max(0, at.y - this.tip.offsetHeight - 8)}px`;
  }
  sayShort(event) {
    const { columns, names, looks } = this.picture;
    const name = names[columns.name[event]];
    return `${name.length > 160 ? `${name.slice(0, 159)}\u2026` : name}\n${looks[columns.kind[event]].word}, ${inWords(columns.duration[event])}, at ${inWords(columns.start[event])}`;
  }

  showSelected() {
    const row = this.model.get("selected");
    if (this.selected >= 0 && this.picture.columns.row[this.selected] === row) return;
    this.selected = row >= 0 ? this.placeOf.get(row) ?? -1 : -1;
    if (this.selected >= 0) this.picture.reveal(this.selected);
    this.refresh();
  }
  showDetails() {
    const said = this.model.get("details");
    const { columns, names, looks } = this.picture;
    const event = this.selected;
    let pairs = [];
    if (event >= 0) {
      const kernel = columns.row[event] >= 0 && said.length && said[0][0] === String(columns.row[event]);
      pairs = kernel ? said.slice(1) : [
        ["name", names[columns.name[event]]],
        ["what", looks[columns.kind[event]].word],
        ["start", inWords(columns.start[event])],
        ["duration", inWords(columns.duration[event])],
      ];
    }
    this.details.replaceChildren(...pairs.flatMap(([term, text]) => [make("dt", { textContent: term }), make("dd", { textContent: text })]));
    if (!pairs.length) this.details.append(make("dd", { className: "kit-timeline-hint", textContent: "Click a box, or press Enter, for its details; Shift+drag for the table of a range." }));
  }
  showTable() {
    const [title, head, rows] = this.model.get("table");
    const cell = (name, text) => make(name, { textContent: text });
    this.table.replaceChildren(make("table", {},
      make("caption", { textContent: title }),
      make("thead", {}, make("tr", {}, ...head.map((text) => cell("th", text)))),
      make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((text) => cell("td", text)))))));
  }
}

function render({ model, el }) {
  const face = new TimelineFace(model, el);
  return () => face.end();
}

export default { render };
