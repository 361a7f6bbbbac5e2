// The picture of a timeline on a canvas: where its rows stand, what of them is seen, and what is under a point.

const GUTTER = 178;
const AXIS = 24;
const GAP = 8;
const LETTER_PIXELS = 12;
const HEIGHTS = { summary: 20, stream: 18, host: 13, plan: 18, memory: 40 };
const TICKS = [1, 2, 5];

/** A length of time in words, from nanoseconds. */
function inWords(ns) {
  const [unit, name] = Math.abs(ns) >= 1e9 ? [1e9, "s"] : Math.abs(ns) >= 1e6 ? [1e6, "ms"] : Math.abs(ns) >= 1e3 ? [1e3, "\u00b5s"] : [1, "ns"];
  return `${(ns / unit).toLocaleString("en", { maximumFractionDigits: unit === 1 ? 0 : 3 })} ${name}`;
}

class TimelinePicture {
  constructor(frame, data, settings) {
    Object.assign(this, data); // columns, tracks, names, looks, joined, axis
    this.settings = settings; // theme(), selected(), window(), hosts(), most()
    this.top = 0; // of the rows, scrolled
    this.hovered = -1;
    this.found = null; // Uint8Array by name: 1 where the search matches
    this.matches = [];
    this.painter = new Painter(data.looks);
    this.boxes = this.tracks.filter((track) => track.role !== "memory" && track.count);
    this.firsts = Float64Array.from(this.boxes, (track) => track.first); // the columns hold one track after the other
    this.surface = new Surface(frame, () => this.draw());
    this.lay();
  }

  /** Give every visible row its place. */
  lay() {
    let y = 0;
    let rank = null;
    this.rows = [];
    for (const track of this.tracks) {
      if (track.role === "host" && !this.settings.hosts()) continue;
      if (rank !== null && track.rank !== rank) y += GAP;
      rank = track.rank;
      const height = HEIGHTS[track.role];
      this.rows.push({ track, y, height });
      y += height;
    }
    this.content = y + 6;
    this.rowOf = new Map(this.rows.map((row) => [row.track, row]));
    const height = Math.min(this.content + AXIS, this.settings.most());
    this.surface.resize(this.surface.canvas.parentElement.clientWidth, height);
    this.surface.height = height;
    this.scroll(0);
  }
  scroll(by) {
    const before = this.top;
    this.top = Math.min(Math.max(this.top + by, 0), Math.max(0, this.content + AXIS - this.surface.height));
    return this.top !== before;
  }
  trackOf(event) { return this.boxes[lowerBound(this.firsts, 0, this.firsts.length, event + 1) - 1]; }
  /** Scroll and pan until an event is seen. */
  reveal(event) {
    const row = this.rowOf.get(this.trackOf(event));
    if (!row) return;
    const seen = this.surface.height - AXIS;
    if (row.y < this.top) this.top = row.y;
    if (row.y + row.height > this.top + seen) this.top = row.y + row.height - seen;
    const { start, duration } = this.columns;
    this.axis.reveal(start[event], start[event] + duration[event]);
  }
  /** The event at a point of the canvas, -1 for none. */
  eventAt({ x, y }) {
    const at = this.rowAt(y);
    if (!at || x < GUTTER || at.track.role === "memory") return -1;
    return at.track.find(this.axis.value(x - GUTTER), 2 / this.axis.scale);
  }
  rowAt(y) {
    const inside = y - AXIS + this.top;
    return y < AXIS ? undefined : this.rows.find((row) => inside >= row.y && inside < row.y + row.height);
  }

  draw() {
    const { surface, axis } = this;
    const { context, width, height, ratio } = surface;
    this.theme = this.settings.theme();
    axis.pixels = Math.max(1, width - GUTTER - 2);
    const shown = this.rows.filter((row) => row.y + row.height > this.top && row.y < this.top + height - AXIS);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, surface.canvas.width, surface.canvas.height);
    context.save();
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.beginPath();
    context.rect(0, AXIS, width, height - AXIS);
    context.clip();
    this.drawBands(context, shown);
    const words = this.drawRows(context, shown, ratio);
    this.drawJoins(context);
    this.drawMarks(context);
    this.drawLabels(context, words);
    this.drawGutter(context, shown);
    context.restore();
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.drawAxis(context);
    this.drawWindow(context);
    this.drawScrollbar(context);
  }
  yOf(row) { return AXIS + row.y - this.top; }

  drawBands(context, shown) {
    context.fillStyle = this.theme.band;
    context.globalAlpha = 0.45;
    for (const row of shown) context.fillRect(GUTTER, this.yOf(row) + 1, this.axis.pixels, row.height - 2);
    context.globalAlpha = 1;
  }
  drawRows(context, shown, ratio) {
    const { axis, painter } = this;
    const drawn = shown.filter((row) => row.track.role !== "memory");
    const width = Math.round(axis.pixels * ratio);
    const words = [];
    painter.begin(width, drawn.length);
    drawn.forEach((row, line) => {
      const least = row.track.role === "plan" ? LETTER_PIXELS : LABEL_PIXELS; // a phase carries its letter
      for (const event of painter.row(line, row.track, axis, least * ratio)) words.push([row, event]);
    });
    painter.end(drawn.length);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.imageSmoothingEnabled = false;
    if (this.found) context.globalAlpha = 0.3;
    drawn.forEach((row, line) => {
      const top = Math.round((this.yOf(row) + 2) * ratio);
      painter.put(context, line, Math.round(GUTTER * ratio), top, Math.round((row.height - 4) * ratio));
    });
    context.globalAlpha = 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    for (const row of shown) {
      if (row.track.role !== "memory") continue;
      row.track.draw(context, axis, GUTTER, this.yOf(row) + 1, row.height - 2, this.theme.accent);
    }
    return words;
  }
  drawLabels(context, words) {
    const { start, duration, kind, name } = this.columns;
    const right = GUTTER + this.axis.pixels;
    context.font = `10px ${this.theme.font}`;
    context.textBaseline = "middle";
    context.textAlign = "left";
    const letter = 5.4;
    for (const [row, event] of words) {
      if (this.found && !this.found[name[event]]) continue;
      const look = this.looks[kind[event]];
      const left = Math.max(GUTTER, GUTTER + this.axis.at(start[event]));
      const end = Math.min(right, GUTTER + this.axis.at(start[event] + duration[event]));
      const space = Math.floor((end - left - 8) / letter);
      const short = space < 4 && row.track.role === "plan" && look.pattern === "solid";
      if (space < 4 && (!short || end - left < LETTER_PIXELS)) continue;
      const room = Math.max(space, 1);
      const said = short ? look.word.charAt(0) : this.names[name[event]];
      const text = said.length <= room ? said : `${said.slice(0, room - 1)}\u2026`;
      const y = this.yOf(row) + row.height / 2;
      if (look.pattern !== "solid" && look.pattern !== "empty") {
        context.fillStyle = look.colour; // a plain ground under the words, where the pattern would cross them
        context.fillRect(left + 2, this.yOf(row) + 3, Math.min(end - left - 4, text.length * letter + 6), row.height - 6);
      }
      context.fillStyle = look.pattern === "empty" ? this.theme.quiet : look.ink;
      context.fillText(text, left + (short ? 3 : 4), y + 0.5, end - left - (short ? 4 : 6));
    }
  }
  /** Lines from a collective's box on one rank to its box on the next; at most one for each few pixels. */
  drawJoins(context) {
    const { axis } = this;
    const { start, duration } = this.columns;
    const count = this.joinStart.length;
    const lines = new Path2D();
    const areas = new Path2D();
    let i = lowerBound(this.joinStart, 0, count, axis.from - this.longestJoin);
    while (i < count && this.joinStart[i] < axis.to) {
      const [a, b] = [this.joined[2 * i], this.joined[2 * i + 1]];
      const [one, other] = [this.rowOf.get(this.trackOf(a)), this.rowOf.get(this.trackOf(b))];
      if (one && other) {
        const [xa, xb] = [GUTTER + axis.at(start[a]), GUTTER + axis.at(start[b])];
        const [ya, yb] = [this.yOf(one) + one.height - 2, this.yOf(other) + 2];
        lines.moveTo(xa, ya);
        lines.lineTo(xb, yb);
        const [ea, eb] = [GUTTER + axis.at(start[a] + duration[a]), GUTTER + axis.at(start[b] + duration[b])];
        if (Math.max(ea - xa, eb - xb) >= JOIN_PIXELS) {
          lines.moveTo(ea, ya);
          lines.lineTo(eb, yb);
          areas.moveTo(xa, ya);
          areas.lineTo(ea, ya);
          areas.lineTo(eb, yb);
          areas.lineTo(xb, yb);
          areas.closePath();
        }
      }
      const next = gallop(this.joinStart, i, count, this.joinStart[i] + JOIN_PIXELS / axis.scale);
      i = Math.max(next, i + 1);
    }
    context.save();
    context.beginPath();
    context.rect(GUTTER, 0, axis.pixels, this.surface.height);
    context.clip();
    context.fillStyle = this.looks[1].colour;
    context.globalAlpha = 0.14;
    context.fill(areas);
    context.globalAlpha = 0.75;
    context.strokeStyle = this.theme.quiet;
    context.lineWidth = 1;
    context.stroke(lines);
    context.restore();
  }
  /** What the search found, what is selected, what is under the pointer. */
  drawMarks(context) {
    const { start, duration } = this.columns;
    const { axis, theme } = this;
    if (this.found) {
      context.fillStyle = theme.text;
      for (const [track, events] of this.matches) {
        const row = this.rowOf.get(track);
        if (!row) continue;
        let n = lowerBound(events.starts, 0, events.starts.length, axis.from);
        if (n > 0) n--;
        while (n < events.starts.length && events.starts[n] < axis.to) {
          const left = Math.max(0, axis.at(events.starts[n]));
          const right = Math.min(axis.pixels, axis.at(events.starts[n] + duration[events.ids[n]]));
          if (right >= 0) this.mark(context, row, left, Math.max(right - left, 1.5), events.ids[n]);
          n = Math.max(n + 1, gallop(events.starts, n, events.starts.length, axis.value(Math.max(left, right) + 1)));
        }
      }
    }
    for (const [event, line] of [[this.hovered, 1], [this.settings.selected(), 2.5]]) {
      const row = event >= 0 ? this.rowOf.get(this.trackOf(event)) : null;
      if (!row) continue;
      const left = GUTTER + Math.max(-3, axis.at(start[event]));
      const right = GUTTER + Math.min(axis.pixels + 3, axis.at(start[event] + duration[event]));
      if (right < GUTTER - 2 || left > GUTTER + axis.pixels + 2) continue;
      const y = this.yOf(row);
      context.strokeStyle = theme.text;
      context.lineWidth = line;
      context.strokeRect(left - 1, y + 0.5, Math.max(right - left, 2) + 2, row.height - 1);
      if (line > 1 && right - left < 8) {
        context.fillStyle = theme.text;
        context.beginPath();
        context.moveTo(left - 5, y - 6);
        context.lineTo(left + 7, y - 6);
        context.lineTo(left + 1, y + 1);
        context.fill();
      }
    }
  }
  mark(context, row, left, width, event) {
    const y = this.yOf(row);
    context.globalAlpha = 1;
    context.fillStyle = this.looks[this.columns.kind[event]].colour;
    context.fillRect(GUTTER + left, y + 2, width, row.height - 4);
    if (width >= HATCH_PIXELS) this.painter.pattern(context, this.columns.kind[event], GUTTER + left, y + 2, width, row.height - 4);
    context.fillStyle = this.theme.text;
    context.fillRect(GUTTER + left, y + row.height - 3, width, 2); // a bar under it: not by brightness alone
  }
  drawGutter(context, shown) {
    const { theme } = this;
    context.fillStyle = theme.ground;
    context.fillRect(0, AXIS, GUTTER - 1, this.surface.height);
    context.textBaseline = "middle";
    context.textAlign = "left";
    for (const row of shown) {
      const { track } = row;
      if (!track.label) continue;
      const heads = track.role === "summary";
      context.font = heads ? `600 12px ${theme.font}` : `11px ${theme.font}`;
      context.fillStyle = heads ? theme.text : theme.quiet;
      const said = track.role === "memory" ? `${track.label}, peak ${inBytes(track.peak)}` : track.label;
      context.fillText(said, heads ? 4 : 14, this.yOf(row) + row.height / 2 + 0.5, GUTTER - 22);
    }
  }
  drawAxis(context) {
    const { axis, theme, surface } = this;
    context.fillStyle = theme.ground;
    context.fillRect(0, 0, surface.width, AXIS);
    const least = 90 / axis.scale;
    const ten = Math.pow(10, Math.floor(Math.log10(least)));
    const step = [...TICKS.map((t) => t * ten), 10 * ten].find((s) => s >= least);
    const digits = Math.max(0, Math.min(6, 6 - Math.floor(Math.log10(step) + 1e-9)));
    context.font = `11px ${theme.font}`;
    context.textBaseline = "middle";
    context.textAlign = "center";
    context.fillStyle = theme.quiet;
    context.strokeStyle = theme.line;
    context.lineWidth = 1;
    context.beginPath();
    for (let at = Math.ceil(axis.from / step) * step; at <= axis.to; at += step) {
      const x = Math.round(GUTTER + axis.at(at)) + 0.5;
      context.moveTo(x, AXIS - 5);
      context.lineTo(x, AXIS);
      const text = (at / 1e6 || 0).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
      const half = 3.2 * text.length;
      if (x < surface.width - half && x > GUTTER - 60 + half) context.fillText(text, x, AXIS / 2 - 1);
    }
    context.moveTo(GUTTER, AXIS - 0.5);
    context.lineTo(surface.width, AXIS - 0.5);
    context.stroke();
    context.textAlign = "left";
    context.fillText("milliseconds", 4, AXIS / 2 - 1);
  }
  drawWindow(context) {
    const range = this.settings.window();
    if (!range) return;
    const { axis, theme, surface } = this;
    const [left, right] = range.map((at) => Math.min(Math.max(axis.at(at), 0), axis.pixels) + GUTTER);
    context.fillStyle = theme.accent;
    context.globalAlpha = 0.12;
    context.fillRect(left, AXIS, right - left, surface.height - AXIS);
    context.globalAlpha = 1;
    for (const [x, at] of [[left, range[0]], [right, range[1]]]) {
      if (at >= axis.from && at <= axis.to) context.fillRect(x - 1, AXIS - 6, 2, surface.height);
    }
  }
  drawScrollbar(context) {
    const { theme, surface } = this;
    const seen = surface.height - AXIS;
    if (this.content <= seen) return;
    const length = Math.max(24, (seen / this.content) * seen);
    context.fillStyle = theme.quiet;
    context.globalAlpha = 0.5;
    context.fillRect(surface.width - 5, AXIS + (this.top / (this.content - seen)) * (seen - length), 4, length);
    context.globalAlpha = 1;
  }
  /** Mark what carries a text in its name, in the rows that are shown; gives how many events do. "" ends the search. */
  search(text) {
    const wanted = text.trim().toLowerCase();
    this.found = null;
    this.matches = [];
    this.hits = [];
    if (!wanted) return 0;
    this.found = Uint8Array.from(this.names, (name) => (name.toLowerCase().includes(wanted) ? 1 : 0));
    const { start, name, row } = this.columns;
    for (const { track } of this.rows) {
      if (track.role === "memory") continue;
      const ids = [];
      for (let i = track.first; i < track.first + track.count; i++) if (this.found[name[i]] && row[i] >= 0) ids.push(i);
      if (ids.length) this.matches.push([track, { ids, starts: Float64Array.from(ids, (i) => start[i]) }]);
    }
    this.hits = this.matches.flatMap(([, events]) => events.ids).sort((a, b) => start[a] - start[b]);
    return this.hits.length;
  }
}

function inBytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const place = count > 0 ? Math.min(Math.floor(Math.log2(count) / 10), 4) : 0;
  return `${(count / Math.pow(1024, place)).toPrecision(3)} ${units[place]}`;
}
