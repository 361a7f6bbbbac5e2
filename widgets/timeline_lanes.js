// Rows of boxes over time, at any number of boxes: each row is a line of pixels, filled by walking its sorted starts.
// A box of a pixel or more is drawn; smaller ones of the same pixel are one cell, found by galloping, whose shade is how
// much of the pixel they cover (sums before each box are kept). So a frame costs pixels, not events.

const LABEL_PIXELS = 46;
const HATCH_PIXELS = 4;
const JOIN_PIXELS = 5;
const EMPTY = 255;

/** The first place in [from, to) of a sorted array whose value is at least `wanted`. */
function lowerBound(values, from, to, wanted) {
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (values[middle] < wanted) from = middle + 1;
    else to = middle;
  }
  return from;
}

/** As `lowerBound`, quick when the place is near `from`. */
function gallop(values, from, to, wanted) {
  let step = 1;
  let low = from;
  while (low + step < to && values[low + step] < wanted) {
    low += step;
    step *= 2;
  }
  return lowerBound(values, low, Math.min(low + step, to), wanted);
}

/** The events of one row, `first` to `last` of the columns, which do not overlap. */
class Track {
  constructor(said, columns) {
    Object.assign(this, said);
    this.columns = columns;
    this.last = this.first + this.count;
    this.kinds = [];
    this.sums = [];
    const { duration, kind } = columns;
    const seen = new Map();
    for (let i = this.first; i < this.last; i++) {
      if (!seen.has(kind[i])) {
        seen.set(kind[i], this.kinds.length);
        this.kinds.push(kind[i]);
      }
    }
    for (const mine of this.kinds) {
      const sums = new Float64Array(this.count + 1);
      for (let n = 0, i = this.first; n < this.count; n++, i++) sums[n + 1] = sums[n] + (kind[i] === mine ? duration[i] : 0);
      this.sums.push(sums);
    }
  }
  /** The first event that ends after `at`. */
  firstAfter(at) {
    const { start, duration } = this.columns;
    let i = lowerBound(start, this.first, this.last, at);
    if (i > this.first && start[i - 1] + duration[i - 1] > at) i--;
    return i;
  }
  /** The event at a time, or one within `slack` of it; -1 without. */
  find(at, slack) {
    const { start, duration } = this.columns;
    const next = lowerBound(start, this.first, this.last, at);
    const before = next - 1;
    if (before >= this.first && start[before] + duration[before] + slack >= at) return before;
    return next < this.last && start[next] - slack <= at ? next : -1;
  }
  /** Kind and cover (0 to 255) of each pixel; boxes wide enough for words go to `wide`. */
  fill(axis, kinds, covers, wide, wideFrom) {
    const { start, duration, kind } = this.columns;
    const width = kinds.length;
    const scale = width / (axis.to - axis.from);
    const zero = axis.from;
    let i = this.firstAfter(zero);
    while (i < this.last) {
      const x = (start[i] - zero) * scale;
      if (x >= width) break;
      const w = duration[i] * scale;
      if (w >= 1) {
        const left = x > 0 ? x | 0 : 0;
        let right = Math.min(width, Math.max(left + 1, Math.round(x + w)));
        if (w >= wideFrom) wide.push(i);
        if (w >= 3 && right < width) right--; // neighbours stay apart
        kinds.fill(kind[i], left, right);
        covers.fill(255, left, right);
        i++;
        continue;
      }
      const pixel = x > 0 ? x | 0 : 0;
      let next = gallop(start, i, this.last, zero + (pixel + 1) / scale);
      if (next <= i) next = i + 1;
      if (next - 1 > i && duration[next - 1] * scale >= 1) next--; // the last of them is a box
      this.cell(i, next, pixel, scale, kinds, covers);
      i = next;
    }
  }
  cell(from, to, pixel, scale, kinds, covers) {
    let most = 0;
    let busy = 0;
    let best = this.columns.kind[from];
    for (let k = 0; k < this.kinds.length; k++) {
      const took = this.sums[k][to - this.first] - this.sums[k][from - this.first];
      busy += took;
      if (took > most) {
        most = took;
        best = this.kinds[k];
      }
    }
    if (covers[pixel] === 255) return;
    kinds[pixel] = best;
    covers[pixel] = 90 + 165 * Math.min(1, busy * scale);
  }
}

/** Totals over time; any stretch's largest value in a few steps, from the largest of each 64. */
class Area {
  constructor(said, at, bytes) {
    Object.assign(this, said);
    this.at = at.subarray(said.first, said.first + said.count);
    this.bytes = bytes.subarray(said.first, said.first + said.count);
    this.blocks = new Float64Array(Math.ceil(said.count / 64)).fill(-Infinity);
    this.peak = 0;
    this.low = 0; // torch counts on the CPU from the profile's start: what is freed that was there before goes below zero
    for (let i = 0; i < said.count; i++) {
      this.blocks[i >> 6] = Math.max(this.blocks[i >> 6], this.bytes[i]);
      this.peak = Math.max(this.peak, this.bytes[i]);
      this.low = Math.min(this.low, this.bytes[i]);
    }
  }
  /** The largest total in [from, to), that before `from` among them; 0 before the first. */
  largest(from, to) {
    let i = lowerBound(this.at, 0, this.at.length, from);
    const end = lowerBound(this.at, i, this.at.length, to);
    let most = i > 0 ? this.bytes[i - 1] : end > i ? -Infinity : 0;
    while (i < end) {
      if ((i & 63) === 0 && i + 64 <= end) {
        most = Math.max(most, this.blocks[i >> 6]);
        i += 64;
      } else most = Math.max(most, this.bytes[i++]);
    }
    return most;
  }
  draw(context, axis, left, top, height, colour) {
    const width = Math.round(axis.pixels);
    const scale = this.peak - this.low || 1;
    context.beginPath();
    context.moveTo(left, top + height);
    for (let x = 0; x < width; x++) {
      const y = top + height - ((this.largest(axis.value(x), axis.value(x + 1)) - this.low) / scale) * (height - 2);
      context.lineTo(left + x, y);
      context.lineTo(left + x + 1, y);
    }
    context.lineTo(left + width, top + height);
    context.globalAlpha = 0.45;
    context.fillStyle = colour;
    context.fill();
    context.globalAlpha = 1;
  }
}

/** Draws rows of pixels: one small image of a line a row, stretched to the height of the row. */
class Painter {
  constructor(looks) {
    this.looks = looks; // of each kind: colour, ink, pattern
    this.buffer = document.createElement("canvas");
    this.palette = new Uint32Array(256 * 256);
    looks.forEach((look, kind) => {
      const rgb = parseInt(look.colour.slice(1), 16);
      const packed = ((rgb & 255) << 16) | (rgb & 0xff00) | (rgb >> 16);
      const drawn = look.pattern !== "empty";
      for (let cover = 0; cover < 256; cover++) this.palette[kind * 256 + cover] = drawn ? (packed | (cover << 24)) >>> 0 : 0;
    });
    this.hatches = new Map();
  }
  /** Room for `rows` lines of `width` pixels. */
  begin(width, rows) {
    if (this.width !== width || this.rows < rows || !this.image) {
      this.width = this.buffer.width = width;
      this.rows = this.buffer.height = Math.max(rows, 8);
      this.context = this.buffer.getContext("2d");
      this.image = this.context.createImageData(width, this.rows);
      this.pixels = new Uint32Array(this.image.data.buffer);
      this.kinds = Array.from({ length: this.rows }, () => new Uint8Array(width));
      this.covers = new Uint8Array(width);
    }
    this.pixels.fill(0, 0, width * rows);
  }
  /** Fill line `row` with a track; gives the boxes wide enough for words. */
  row(row, track, axis, wideFrom) {
    const [kinds, covers, wide] = [this.kinds[row], this.covers, []];
    kinds.fill(EMPTY);
    covers.fill(0);
    track.fill(axis, kinds, covers, wide, wideFrom);
    const at = row * this.width;
    for (let x = 0; x < this.width; x++) if (covers[x]) this.pixels[at + x] = this.palette[kinds[x] * 256 + covers[x]];
    return wide;
  }
  end(rows) { this.context.putImageData(this.image, 0, 0, 0, 0, this.width, rows); }
  /** Put line `row` where it belongs (device pixels) and give runs of one kind their pattern. */
  put(target, row, left, top, height) {
    target.drawImage(this.buffer, 0, row, this.width, 1, left, top, this.width, height);
    const kinds = this.kinds[row];
    for (let x = 0; x < this.width; ) {
      const kind = kinds[x];
      let end = x + 1;
      while (end < this.width && kinds[end] === kind) end++;
      if (kind !== EMPTY && end - x >= HATCH_PIXELS) this.pattern(target, kind, left + x, top, end - x, height);
      x = end;
    }
  }
  pattern(target, kind, x, y, width, height) {
    const look = this.looks[kind];
    if (look.pattern === "solid") return;
    if (look.pattern === "empty") {
      target.strokeStyle = look.colour;
      target.lineWidth = 1;
      target.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
      return;
    }
    target.fillStyle = this.hatch(target, look.pattern);
    target.fillRect(x, y, width, height);
  }
  hatch(target, name) {
    if (!this.hatches.has(name)) {
      const tile = document.createElement("canvas");
      tile.width = tile.height = 6;
      const ink = tile.getContext("2d");
      ink.fillStyle = ink.strokeStyle = "rgba(0, 0, 0, 0.6)";
      if (name === "dots") ink.fillRect(2, 2, 2, 2);
      else {
        ink.lineWidth = name === "thick" ? 1.8 : 1;
        ink.beginPath();
        for (const shift of [-6, 0, 6]) {
          ink.moveTo(shift - 1, 7);
          ink.lineTo(shift + 7, -1);
        }
        ink.stroke();
      }
      this.hatches.set(name, target.createPattern(tile, "repeat"));
    }
    return this.hatches.get(name);
  }
}
