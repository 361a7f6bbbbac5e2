// The face of ChoiceSlider: a native range input with its label, its scale and the chosen word.
let made = 0;

function render({ model, el }) {
  const id = `kit-slider-${++made}`;
  el.classList.add("kit-slider");

  const label = document.createElement("label");
  label.htmlFor = id;
  label.textContent = model.get("description");

  const middle = document.createElement("div");
  middle.className = "kit-slider-middle";
  const input = document.createElement("input");
  Object.assign(input, { type: "range", id, min: "0", step: "1" });
  const scale = document.createElement("div");
  scale.className = "kit-slider-scale";
  scale.setAttribute("aria-hidden", "true");
  middle.append(input, scale);

  const output = document.createElement("b"); // the input itself speaks: no second live region
  output.setAttribute("aria-hidden", "true");
  el.append(label, middle, output);

  function showChoices() {
    const choices = model.get("choices");
    input.max = String(choices.length - 1);
    scale.replaceChildren(
      ...choices.map((choice) => {
        const mark = document.createElement("span");
        mark.textContent = choice;
        return mark;
      }),
    );
    showIndex();
  }

  function showIndex() {
    const index = model.get("index");
    // While a person drags, the kernel's echo of an older place must not pull the handle back.
    if (!input.matches(":active")) input.value = String(index);
    say(index);
  }

  function say(index) {
    output.textContent = model.get("choices")[index] ?? "";
    input.setAttribute("aria-valuetext", model.get("spoken")[index] ?? "");
    [...scale.children].forEach((mark, place) => mark.classList.toggle("chosen", place === index));
  }

  function choose() {
    const index = Number(input.value);
    if (index === model.get("index")) return;
    model.set("index", index);
    model.save_changes();
    say(index);
  }

  // JupyterLab in command mode takes arrow keys for moving between cells.
  input.addEventListener("keydown", (event) => event.stopPropagation());
  input.addEventListener("input", choose);
  model.on("change:choices", showChoices);
  model.on("change:index", showIndex);
  showChoices();

  return () => {
    model.off("change:choices", showChoices);
    model.off("change:index", showIndex);
  };
}

export default { render };
