// A line chart in SVG: a caption with the latest values, and lines over the last two minutes. What was not measured
// (NaN) is a gap.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 400;
const HEIGHT = 120;
const SECONDS = 120;
const CLASSES = ["first", "second"];

export class Chart {
  // `lines`: the name of each; `show`: a number as text; `most`: the top of the scale, if it is fixed.
  constructor(host, { title, lines, show, most = null }) {
    this.title = title;
    this.show = show;
    this.most = most;
    this.points = []; // [seconds, a value for each line]
    const figure = add(host, "figure");
    const caption = add(figure, "figcaption");
    add(caption, "b").textContent = title;
    const legend = add(caption, "span", "legend");
    this.lines = lines.map((name, index) => ({ name, label: add(legend, "span", CLASSES[index]) }));
    const plot = add(figure, "div", "plot");
    this.scale = add(plot, "span", "most");
    this.svg = addSvg(plot, "svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    for (const share of [0, 0.5, 1]) addLine(this.svg, 0, WIDTH, share * HEIGHT, share * HEIGHT);
    this.lines.forEach((line, index) => { line.path = addSvg(this.svg, "path", { class: CLASSES[index] }); });
    this.cursor = null;
    this.svg.addEventListener("pointermove", (event) => this.#point(event));
    this.svg.addEventListener("pointerleave", () => this.#point(null));
    this.#describe();
  }

  push(seconds, values) {
    this.points.push([seconds, values]);
    while (this.points[0][0] < seconds - SECONDS) this.points.shift();
    this.#draw();
    if (!this.cursor) this.#describe();
  }

  #draw() {
    const end = this.points.at(-1)[0];
    const known = this.points.flatMap(([, values]) => values).filter(Number.isFinite);
    const most = this.most ?? roundUp(Math.max(...known, 0));
    this.scale.textContent = this.show(most);
    const x = (seconds) => WIDTH * (1 - (end - seconds) / SECONDS);
    const y = (value) => HEIGHT * (1 - Math.min(value / most, 1));
    this.lines.forEach((line, index) => {
      let data = "";
      let isDrawing = false;
      for (const [seconds, values] of this.points) {
        const isKnown = Number.isFinite(values[index]);
        if (isKnown) data += `${isDrawing ? "L" : "M"}${x(seconds).toFixed(1)} ${y(values[index]).toFixed(1)}`;
        isDrawing = isKnown;
      }
      line.path.setAttribute("d", data);
    });
  }

  // The values of the last point, or of the one under the pointer.
  #describe(point = this.points.at(-1)) {
    const texts = this.lines.map(({ name, label }, index) => {
      const value = point ? point[1][index] : NaN;
      return (label.textContent = `${name} ${Number.isFinite(value) ? this.show(value) : "–"}`);
    });
    this.svg.setAttribute("aria-label", `${this.title}: ${texts.join(", ")}`);
  }

  #point(event) {
    this.cursor?.remove();
    this.cursor = null;
    if (!event || !this.points.length) return this.#describe();
    const box = this.svg.getBoundingClientRect();
    const share = (event.clientX - box.left) / box.width;
    const wanted = this.points.at(-1)[0] - SECONDS * (1 - share);
    const point = this.points.reduce((a, b) => (Math.abs(b[0] - wanted) < Math.abs(a[0] - wanted) ? b : a));
    this.cursor = addLine(this.svg, share * WIDTH, share * WIDTH, 0, HEIGHT);
    this.cursor.setAttribute("class", "cursor");
    this.#describe(point);
  }
}

function add(host, kind, className = "") {
  const element = document.createElement(kind);
  if (className) element.className = className;
  return host.appendChild(element);
}

function addSvg(host, kind, attributes) {
  const element = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return host.appendChild(element);
}

function addLine(host, x1, x2, y1, y2) {
  return addSvg(host, "line", { x1, x2, y1, y2 });
}

// The next of 1, 2, 5, 10, ...
function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((digit) => digit * power).find((step) => step >= value * 0.999);
}
