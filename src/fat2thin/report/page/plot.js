// Drawing. All text is inserted as text, so that no name can become markup.

const SVG = "http://www.w3.org/2000/svg";

function make(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key in node && key !== "for" && key !== "list") node[key] = value;
    else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

function shape(name, attributes, parent) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (parent) parent.append(node);
  return node;
}

function byId(id) {
  return document.getElementById(id);
}

function words(number, digits = 4) {
  if (number === null || number === undefined || Number.isNaN(number)) return "–";
  if (!Number.isFinite(number)) return number > 0 ? "∞" : "−∞";
  const size = Math.abs(number);
  const text = size >= 1e6 || (size > 0 && size < 1e-4)
    ? number.toExponential(digits - 1)
    : String(Number(number.toPrecision(digits)));
  return text.replace("-", "−");
}

function counted(number) {
  return number.toLocaleString("en-GB");
}

function ticks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const found = [];
  for (let place = Math.ceil(low / step - 1e-9); place * step <= high + 1e-9 * step; place += 1) {
    found.push(place * step);
  }
  return found.map((value) => Number(value.toPrecision(10)));
}

// Cut a label that is longer than its room; the whole one is beside the pointer.
function shorten(node, room) {
  const whole = node.textContent;
  for (let left = whole.length; left > 1 && node.getComputedTextLength() > room; left -= 1) {
    node.textContent = `${whole.slice(0, left - 1).trimEnd()}…`;
  }
  if (node.textContent !== whole) shape("title", {}, node).textContent = whole;
}

let clipCount = 0;

// Create all panels before drawing, since their widths are final only then.
function panelsIn(host, titles) {
  const panels = titles.map((title) => make("div", { className: "panel" }, ...(title ? [make("h4", { textContent: title })] : [])));
  host.replaceChildren(...panels);
  return panels;
}

// A plot with two axes. `x` and `y` are [lowest, highest]; `label` is for screen readers.
class Plot {
  constructor(panel, { x, y, xLabel, yLabel, height, label, xTicks, yTicks, compact }) {
    this.width = Math.max(240, Math.round(panel.clientWidth));
    this.height = height || 260;
    this.left = 56;
    this.top = 8;
    this.right = this.width - 14;
    this.bottom = this.height - (compact ? 24 : 42);
    this.x = x[1] > x[0] ? x : [x[0] - 1, x[0] + 1];
    this.y = y[1] > y[0] ? y : [y[0] - 1, y[0] + 1];
    const view = `0 0 ${this.width} ${this.height}`;
    this.svg = shape("svg", { viewBox: view, role: "img", "aria-label": label }, panel);
    this.under = shape("g", {}, this.svg);
    this.drawAxes(xLabel, yLabel, xTicks, yTicks);
    clipCount += 1;
    const cut = shape("clipPath", { id: `cut${clipCount}` }, this.svg);
    shape("rect", {
      x: this.left, y: this.top - 2, width: this.right - this.left, height: this.bottom - this.top + 4,
    }, cut);
    for (const layer of ["under", "over"]) {
      this[layer] = layer === "under" ? this.under : shape("g", {}, this.svg);
      this[layer].setAttribute("clip-path", `url(#cut${clipCount})`);
    }
  }

  px(value) {
    return this.left + ((value - this.x[0]) / (this.x[1] - this.x[0])) * (this.right - this.left);
  }

  py(value) {
    return this.bottom - ((value - this.y[0]) / (this.y[1] - this.y[0])) * (this.bottom - this.top);
  }

  drawAxes(xLabel, yLabel, xTicks, yTicks) {
    const across = xTicks || ticks(...this.x, Math.min(6, (this.right - this.left) / 75));
    for (const value of yTicks || ticks(...this.y, (this.bottom - this.top) / 45)) {
      const y = this.py(value);
      shape("line", { class: "grid", x1: this.left, x2: this.right, y1: y, y2: y }, this.svg);
      this.text(this.left - 6, y + 4, words(value), "end");
    }
    for (const value of across) {
      const x = this.px(value);
      shape("line", { class: "grid", x1: x, x2: x, y1: this.bottom, y2: this.bottom + 4 }, this.svg);
      const text = Math.abs(value) >= 1000 ? counted(value) : words(value);
      const atEnd = x > this.right - 3.5 * text.length;
      this.text(atEnd ? this.right + 8 : x, this.bottom + 17, text, atEnd ? "end" : "middle");
    }
    const below = this.text((this.left + this.right) / 2, this.height - 7, xLabel || "", "middle");
    shorten(below, this.right - this.left + 12);
    const up = this.text(13, (this.top + this.bottom) / 2, yLabel || "", "middle");
    shorten(up, this.bottom - this.top + 8);
    up.setAttribute("transform", `rotate(-90 13 ${(this.top + this.bottom) / 2})`);
  }

  text(x, y, content, anchor) {
    const node = shape("text", { x, y, "text-anchor": anchor }, this.svg);
    node.textContent = content;
    return node;
  }

  path(points) {
    let begun = false;
    return points.map(([x, y]) => {
      if (y === null || !Number.isFinite(y)) {
        begun = false;
        return "";
      }
      const move = begun ? "L" : "M";
      begun = true;
      return `${move}${this.px(x).toFixed(1)} ${this.py(y).toFixed(1)}`;
    }).join("");
  }

  line(points, { colour, dash = "", width = 2, name }) {
    const node = shape("path", {
      d: this.path(points), fill: "none", "stroke-width": width, "stroke-dasharray": dash, "stroke-linejoin": "round",
    }, this.over);
    node.style.stroke = colour;
    if (name) shape("title", {}, node).textContent = name;
    return node;
  }

  // A band through [x, low, high]; there is a gap where a value is missing.
  band(triples, { colour, opacity = 0.2 }) {
    let run = [];
    const finish = () => {
      if (run.length) {
        const outline = [...run.map(([x, low]) => [x, low]), ...run.map(([x, , high]) => [x, high]).reverse()];
        const node = shape("path", { d: `${this.path(outline)}Z`, "fill-opacity": opacity, stroke: "none" }, this.under);
        node.style.fill = colour;
      }
      run = [];
    };
    for (const triple of triples) {
      if (triple[1] === null || triple[2] === null) finish();
      else run.push(triple);
    }
    finish();
  }

  span(from, to) {
    const [x1, x2] = [clip(this.px(from), this.left, this.right), clip(this.px(to), this.left, this.right)];
    if (x2 > x1) shape("rect", { class: "zero", x: x1, width: x2 - x1, y: this.top, height: this.bottom - this.top }, this.under);
  }

  vertical(x, kind) {
    shape("line", { class: kind, x1: this.px(x), x2: this.px(x), y1: this.top, y2: this.bottom }, this.over);
  }

  horizontal(y, kind) {
    shape("line", { class: kind, x1: this.left, x2: this.right, y1: this.py(y), y2: this.py(y) }, this.over);
  }

  // A mark on the lower axis: a stroke for an action inside, a cross for one outside.
  mark(x, inside) {
    const [at, y] = [this.px(x), this.bottom - 6];
    const d = inside ? `M${at} ${y - 6}V${y + 6}` : `M${at - 3} ${y - 3}L${at + 3} ${y + 3}M${at - 3} ${y + 3}L${at + 3} ${y - 3}`;
    const node = shape("path", { d, fill: "none", "stroke-width": 1.3, "stroke-opacity": 0.8 }, this.over);
    node.style.stroke = inside ? "var(--logged)" : "var(--outside)";
  }
}

function swatch(kind, colour, dash = "") {
  const svg = shape("svg", { class: "swatch", viewBox: "0 0 28 12", "aria-hidden": "true" });
  const drawings = {
    line: () => shape("path", { d: "M0 6H28", fill: "none", "stroke-width": 2.5, "stroke-dasharray": dash }, svg),
    inside: () => shape("path", { d: "M14 1V11", fill: "none", "stroke-width": 2 }, svg),
    outside: () => shape("path", { d: "M10 2L18 10M10 10L18 2", fill: "none", "stroke-width": 2 }, svg),
    area: () => shape("rect", { width: 28, height: 12, "fill-opacity": 0.3 }, svg),
    solid: () => shape("rect", { width: 28, height: 9, y: 1.5 }, svg),
    zero: () => shape("rect", { width: 28, height: 12, class: "zero" }, svg),
    edge: () => shape("path", { d: "M14 0V12", class: "edge" }, svg),
    dense: () => shape("rect", { width: 28, height: 12, class: "density", "fill-opacity": 0.5 }, svg),
    refer: () => shape("rect", { width: 28, height: 12, class: "referred" }, svg),
  };
  const node = drawings[kind]();
  if (kind === "area" || kind === "solid") node.style.fill = colour;
  else if (colour) node.style.stroke = colour;
  return svg;
}

function key(host, entries) {
  host.replaceChildren(...entries.map(([kind, colour, text, dash]) => make("span", {}, swatch(kind, colour, dash), text)));
}

function choices(select, texts) {
  select.replaceChildren(...texts.map((text, place) => make("option", { value: String(place), textContent: text })));
}

function table(node, headings, rows) {
  const cell = (kind) => (value) => {
    const number = typeof value === "number";
    const inner = value instanceof Node ? value : number ? words(value, 6) : String(value ?? "–");
    return make(kind, { className: number ? "number" : "" }, inner);
  };
  const numeric = (column) => rows.some((row) => typeof row[column] === "number");
  const heading = (text, column) => make("th", { scope: "col", className: numeric(column) ? "number" : "" }, text);
  const head = make("thead", {}, make("tr", {}, ...headings.map(heading)));
  const body = make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map(cell("td")))));
  node.replaceChildren(head, body);
}

// A spreadsheet must not read an untrusted name as a formula.
function csvCell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return Number.isFinite(value) ? String(value) : "";
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function csv(headings, rows) {
  return [headings, ...rows].map((row) => row.map(csvCell).join(",")).join("\r\n");
}

// A button that saves a table. `rows()` returns [headings, rows].
function saveButton(file, rows) {
  const save = make("button", { type: "button", textContent: "Download CSV" });
  save.addEventListener("click", () => {
    const address = URL.createObjectURL(new Blob([csv(...rows())], { type: "text/csv" }));
    make("a", { href: address, download: file }).click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  });
  return save;
}

// Buttons that show and save the numbers behind a plot. `rows()` returns [headings, rows].
class DataButtons {
  constructor(host, file, rows) {
    this.rows = rows;
    this.pre = make("pre", { tabIndex: 0, hidden: true });
    this.show = make("button", { type: "button", textContent: "Show data", "aria-expanded": "false" });
    const save = saveButton(file, () => this.rows());
    this.show.addEventListener("click", () => {
      this.pre.hidden = !this.pre.hidden;
      this.show.setAttribute("aria-expanded", String(!this.pre.hidden));
      this.show.textContent = this.pre.hidden ? "Show data" : "Hide data";
      this.update();
    });
    host.replaceChildren(this.show, save, this.pre);
  }

  update() {
    if (!this.pre.hidden) this.pre.textContent = csv(...this.rows());
  }
}
