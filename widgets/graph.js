// The face of GraphPicture: a frame in which an SVG zooms and scrolls. Asks nothing of the kernel.
const STEP = 1.25;
const LEAST = 0.05;
const MOST = 8;

function render({ model, el }) {
  el.classList.add("kit-view", "kit-graph");
  const bar = document.createElement("div");
  bar.className = "kit-graph-bar";
  const frame = document.createElement("div");
  frame.className = "kit-graph-frame";
  frame.tabIndex = 0;
  frame.setAttribute("role", "group");
  el.append(bar, frame);

  let svg = null;
  let natural = { width: 1, height: 1 };
  let zoom = 1;

  for (const [text, name, act] of [
    ["+", "Zoom in", () => scale(zoom * STEP)],
    ["\u2212", "Zoom out", () => scale(zoom / STEP)],
    ["Fit", "Fit the picture to the frame", fit],
  ]) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.title = name;
    button.setAttribute("aria-label", name);
    button.addEventListener("click", act);
    bar.append(button);
  }
  const hint = document.createElement("span");
  hint.textContent = "+ \u2212 0 or Ctrl+wheel zoom; arrows or dragging move";
  bar.append(hint);

  function show() {
    frame.setAttribute("aria-label", model.get("description"));
    frame.style.maxHeight = `${model.get("height")}px`;
    // Parsed apart from the page and cleaned: nothing in a picture that came from elsewhere may run.
    const parsed = new DOMParser().parseFromString(model.get("svg"), "image/svg+xml").documentElement;
    parsed.querySelectorAll("script, foreignObject").forEach((part) => part.remove());
    for (const part of [parsed, ...parsed.querySelectorAll("*")]) {
      for (const { name } of [...part.attributes]) if (name.toLowerCase().startsWith("on")) part.removeAttribute(name);
    }
    svg = document.importNode(parsed, true);
    const box = (svg.getAttribute("viewBox") ?? "").split(/[\s,]+/).map(Number);
    natural = box.length === 4
      ? { width: box[2], height: box[3] }
      : { width: parseFloat(svg.getAttribute("width")) || 800, height: parseFloat(svg.getAttribute("height")) || 400 };
    svg.style.maxWidth = "none";
    frame.replaceChildren(svg);
    fit();
  }

  // Keeps the point under `at` (in the frame, default its middle) where it is.
  function scale(wanted, at) {
    const next = Math.min(Math.max(wanted, LEAST), MOST);
    const x = at?.x ?? frame.clientWidth / 2;
    const y = at?.y ?? frame.clientHeight / 2;
    const left = ((frame.scrollLeft + x) * next) / zoom - x;
    const top = ((frame.scrollTop + y) * next) / zoom - y;
    zoom = next;
    svg.style.width = `${natural.width * zoom}px`;
    svg.style.height = `${natural.height * zoom}px`;
    frame.scrollTo({ left, top });
    frame.dataset.zoom = zoom.toFixed(3);
  }

  function fit() {
    const width = frame.clientWidth || 800;
    scale(Math.min(width / natural.width, 1));
    frame.scrollTo({ left: 0, top: 0 });
  }

  frame.addEventListener("keydown", (event) => {
    const act = { "+": () => scale(zoom * STEP), "=": () => scale(zoom * STEP), "-": () => scale(zoom / STEP), 0: fit }[event.key];
    if (act && !event.ctrlKey && !event.metaKey) {
      act();
      event.preventDefault();
    }
    if (act || event.key.startsWith("Arrow")) event.stopPropagation(); // JupyterLab would move between cells
  });
  frame.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // without a key the page scrolls, as everywhere
      event.preventDefault();
      const box = frame.getBoundingClientRect();
      scale(zoom * (event.deltaY < 0 ? STEP : 1 / STEP), { x: event.clientX - box.left, y: event.clientY - box.top });
    },
    { passive: false },
  );
  frame.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    frame.setPointerCapture(event.pointerId);
    const move = (moved) => frame.scrollBy(-moved.movementX, -moved.movementY);
    frame.addEventListener("pointermove", move);
    frame.addEventListener("pointerup", () => frame.removeEventListener("pointermove", move), { once: true });
  });

  model.on("change:svg", show);
  // The frame has its width only once it is on the page.
  const sized = new ResizeObserver(() => {
    if (frame.clientWidth > 0) {
      sized.disconnect();
      fit();
    }
  });
  show();
  sized.observe(frame);
  return () => {
    sized.disconnect();
    model.off("change:svg", show);
  };
}

export default { render };
