// What views on a canvas share: an axis that zooms and pans, the gestures that move it, the colours of the page.
// Knows nothing of what is drawn. `widgets.module` puts it in front of a view's own code: together one ES module.

/** The shown part [from, to] of [first, last] on `pixels` pixels. A plane has two of them. */
class Axis {
  constructor(first, last, least) {
    Object.assign(this, { first, last, least, from: first, to: last, pixels: 1 });
  }
  get scale() { return this.pixels / (this.to - this.from); }
  at(value) { return (value - this.from) * this.scale; }
  value(pixel) { return this.from + pixel / this.scale; }
  /** Show [from, to], kept inside the whole and no shorter than `least`. */
  show(from, to) {
    const whole = this.last - this.first;
    const length = Math.min(Math.max(to - from, this.least), whole);
    const middle = (from + to) / 2;
    this.from = Math.min(Math.max(middle - length / 2, this.first), this.last - length);
    this.to = this.from + length;
  }
  fit() { this.show(this.first, this.last); }
  pan(pixels) { const by = pixels / this.scale; this.show(this.from + by, this.to + by); }
  /** Zoom by `factor` (above 1: nearer), keeping what is under `pixel` where it is. */
  zoom(factor, pixel) {
    const whole = this.last - this.first;
    const length = Math.min(Math.max((this.to - this.from) / factor, this.least), whole);
    const from = this.value(pixel) - (pixel / this.pixels) * length;
    this.show(from, from + length);
  }
  /** Move, without zooming, until a value can be seen. */
  reveal(from, to) {
    if (from >= this.from && to <= this.to) return;
    const length = Math.max(this.to - this.from, Math.min((to - from) * 1.2, this.last - this.first));
    const middle = (from + to) / 2;
    this.show(middle - length / 2, middle + length / 2);
  }
}

const ZOOM_STEP = 1.25;
const CLICK_PIXELS = 4;

/** Mouse, wheel and keyboard of an element, told to `on`: zoom, pan, mark, click, doubleClick, hover, key. */
class Gestures {
  constructor(element, on) {
    this.element = element;
    this.on = on;
    element.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    element.addEventListener("pointerdown", (event) => this.press(event));
    element.addEventListener("pointermove", (event) => { if (!this.drag) on.hover(this.place(event)); });
    element.addEventListener("pointerleave", () => { if (!this.drag) on.hover(null); });
    element.addEventListener("dblclick", (event) => on.doubleClick(this.place(event)));
    element.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (on.key(event.key, event.shiftKey)) event.preventDefault();
    });
  }
  place(event) {
    const box = this.element.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }
  wheel(event) {
    const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    const lines = event.deltaMode === 1 ? 16 : 1;
    if (event.ctrlKey || event.metaKey) {
      const notches = Math.min(Math.max((event.deltaY * lines) / 100, -4), 4);
      this.on.zoom(Math.pow(ZOOM_STEP, -notches), this.place(event));
    } else if (sideways) {
      this.on.pan((event.deltaX || event.deltaY) * lines, 0);
    } else if (document.activeElement !== this.element || !this.on.pan(0, event.deltaY * lines)) {
      return; // without a key the page scrolls, as everywhere, until the view was clicked and has more to show
    }
    event.preventDefault();
  }
  press(event) {
    if (event.button !== 0) return;
    const begun = this.place(event);
    const marks = event.shiftKey;
    let last = begun;
    let moved = false;
    this.drag = true;
    this.element.setPointerCapture(event.pointerId);
    const move = (later) => {
      const now = this.place(later);
      moved ||= Math.hypot(now.x - begun.x, now.y - begun.y) >= CLICK_PIXELS;
      if (moved && marks) this.on.mark(begun.x, now.x, false);
      else if (moved) this.on.pan(last.x - now.x, last.y - now.y);
      if (moved) last = now;
    };
    const end = (later) => {
      this.drag = false;
      for (const [name, heard] of [["pointermove", move], ["pointerup", end], ["pointercancel", end]]) {
        this.element.removeEventListener(name, heard);
      }
      if (later.type === "pointercancel") return;
      if (!moved) this.on.click(begun);
      else if (marks) this.on.mark(begun.x, this.place(later).x, true);
    };
    for (const [name, heard] of [["pointermove", move], ["pointerup", end], ["pointercancel", end]]) {
      this.element.addEventListener(name, heard);
    }
  }
}

/** Colours and font of the page around an element; `changed` is called when the page changes its theme. */
class Theme {
  constructor(element, changed) {
    this.element = element;
    this.watch = new MutationObserver(() => { this.read(); changed(); });
    this.watch.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-jp-theme-name", "class"] });
    this.query = window.matchMedia("(prefers-color-scheme: dark)");
    this.heard = () => { this.read(); changed(); };
    this.query.addEventListener("change", this.heard);
    this.read();
  }
  read() {
    const style = getComputedStyle(this.element);
    const of = (name, light, dark) => style.getPropertyValue(name).trim() || (this.dark ? dark : light);
    const said = document.body.dataset.jpThemeLight;
    this.dark = said ? said === "false" : this.query?.matches ?? false;
    this.ground = of("--jp-layout-color0", "#ffffff", "#111111");
    this.band = of("--jp-layout-color2", "#eeeeee", "#2a2a2a");
    this.line = of("--jp-border-color2", "#d0d0d0", "#4a4a4a");
    this.text = of("--jp-ui-font-color1", "#1a1a1a", "#e6e6e6");
    this.quiet = of("--jp-ui-font-color2", "#666666", "#a8a8a8");
    this.accent = of("--jp-brand-color1", "#0072b2", "#56b4e9");
    this.font = of("--jp-ui-font-family", "sans-serif", "sans-serif");
  }
  end() {
    this.watch.disconnect();
    this.query.removeEventListener("change", this.heard);
  }
}

/** A canvas as wide as its frame in device pixels, drawn at most once a frame. */
class Surface {
  constructor(frame, draw) {
    this.canvas = document.createElement("canvas");
    this.context = this.canvas.getContext("2d");
    this.draw = draw;
    this.width = 0;
    this.height = 0;
    this.pending = 0;
    frame.append(this.canvas);
    this.sized = new ResizeObserver(() => this.resize(frame.clientWidth, this.height));
    this.sized.observe(frame);
  }
  resize(width, height) {
    if (!width || !height) return; // not on the page yet
    this.ratio = window.devicePixelRatio || 1;
    this.width = width;
    this.height = height;
    const [w, h] = [Math.round(width * this.ratio), Math.round(height * this.ratio)];
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    if (this.canvas.width !== w || this.canvas.height !== h) Object.assign(this.canvas, { width: w, height: h });
    this.request();
  }
  request() {
    if (this.pending || !this.width) return;
    this.pending = requestAnimationFrame(() => { this.pending = 0; this.draw(); });
  }
  end() {
    this.sized.disconnect();
    cancelAnimationFrame(this.pending);
  }
}
