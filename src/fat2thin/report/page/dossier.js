// The dossier: tables to download, pictures, and numbers on hover.

function numberOf(value) {
  return value === null || value === undefined ? null : value;
}

// A button below every table that saves it with all digits.
function startTables() {
  for (const host of document.querySelectorAll("[data-table]")) {
    const [answer, name] = host.dataset.table.split(/\/(.*)/s); // a column's name may have a slash
    const { rows } = answer === "verdict" ? { rows: found.dossier.findings } : found.dossier.answers[Number(answer)].tables[name];
    const headings = [...new Set(rows.flatMap((row) => Object.keys(row)))];
    host.append(saveButton(`${name}.csv`, () => [headings, rows.map((row) => headings.map((heading) => numberOf(row[heading])))]));
  }
}

// Numbers beside the pointer or the focus.
function startTips() {
  const tip = byId("tip");
  const show = (event) => {
    const text = event.target.getAttribute && event.target.getAttribute("data-tip");
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    const box = event.target.getBoundingClientRect();
    const x = event.clientX === undefined ? box.left : event.clientX;
    const y = event.clientY === undefined ? box.bottom : event.clientY;
    tip.style.left = `${Math.max(4, Math.min(x + 12, window.innerWidth - tip.offsetWidth - 4))}px`;
    tip.style.top = `${y + 16 + tip.offsetHeight > window.innerHeight ? y - tip.offsetHeight - 8 : y + 16}px`;
  };
  document.addEventListener("mousemove", show);
  document.addEventListener("focusin", show);
  document.addEventListener("focusout", () => { tip.hidden = true; });
}

function labelled(node, text) {
  node.setAttribute("data-tip", text);
  node.setAttribute("aria-label", text);
  node.setAttribute("tabindex", "0");
  node.setAttribute("role", "img");
  node.ownerSVGElement.setAttribute("role", "group"); // the parts of an image cannot have names
  return node;
}

// Bands in typical states, next to what was done.
function drawBands(host, { actions, box, names, low, centre, high, mean, from, to }) {
  const panels = panelsIn(host, actions);
  actions.forEach((label, i) => {
    const [bottom, top] = box[i];
    const every = [...low, ...high, ...from, ...to].map((row) => row[i]).filter((value) => value !== null);
    const reach = [Math.min(...every), Math.max(...every)];
    const margin = 0.06 * (reach[1] - reach[0] || 1);
    const plot = new Plot(panels[i], {
      x: [0.4, names.length + 0.6], y: [reach[0] - margin, reach[1] + margin], xTicks: [], xLabel: "typical state", yLabel: label, height: 300,
      label: `bands of ${label} in ${names.length} typical states, from ${words(Math.min(...low.map((row) => row[i])), 3)} to ${words(Math.max(...high.map((row) => row[i])), 3)}`,
    });
    for (const edge of [bottom, top]) plot.horizontal(edge, "edge");
    names.forEach((name, k) => {
      const x = plot.px(k + 1);
      plot.text(x, plot.bottom + 17, name, "middle");
      const [l, c, h] = [low[k][i], centre[k][i], high[k][i]];
      if (c !== null) {
        const bar = shape("rect", { x: x - 9, width: 9, y: plot.py(h), height: Math.max(plot.py(l) - plot.py(h), 1.5), class: "band" }, plot.over);
        labelled(bar, `state ${name}: the policy gives ${words(l)} to ${words(h)}, centre ${words(c)}`);
        shape("line", { x1: x - 9, x2: x, y1: plot.py(c), y2: plot.py(c), class: "middle" }, plot.over);
      }
      const done = shape("path", { d: `M${x + 6} ${plot.py(from[k][i])}V${plot.py(to[k][i])}`, class: "done" }, plot.over);
      done.setAttribute("data-tip", `state ${name}: given ${words(from[k][i])} to ${words(to[k][i])} (5 % to 95 %), mean ${words(mean[k][i])}`);
      shape("circle", { cx: x + 6, cy: plot.py(mean[k][i]), r: 3.5, class: "done-mean" }, plot.over);
    });
  });
  host.append(legendOf([
    ["area", "var(--thin)", "every dose that the policy can give; line: centre"],
    ["line", "var(--logged)", "what was given: 5 % to 95 %; dot: mean"],
    ["edge", null, "end of the action box"],
  ]));
}

function legendOf(entries) {
  const host = make("div", { className: "key" });
  key(host, entries);
  return host;
}

function drawHistogram(host, { edges, counts, threshold, x_label: xLabel, y_label: yLabel }) {
  const [panel] = panelsIn(host, [""]);
  const last = Math.max(edges.at(-1), threshold * 1.05);
  const plot = new Plot(panel, { x: [0, last], y: [0, Math.max(...counts) * 1.1], xLabel, yLabel, height: 230, label: `${yLabel} by ${xLabel}; the threshold is ${words(threshold, 3)} %` });
  counts.forEach((count, k) => {
    const bar = shape("rect", { x: plot.px(edges[k]), width: Math.max(plot.px(edges[k + 1]) - plot.px(edges[k]) - 1, 1), y: plot.py(count), height: plot.bottom - plot.py(count), class: "band" }, plot.over);
    bar.setAttribute("data-tip", `${words(edges[k], 3)} to ${words(edges[k + 1], 3)} %: ${words(count, 3)} % of the states`);
  });
  plot.vertical(threshold, "edge");
  host.append(legendOf([["area", "var(--thin)", "states"], ["edge", null, "beyond: referred"]]));
}

// The states of two columns: how dense the log is, and where the policy refers.
function drawMap(host, map) {
  const [panel] = panelsIn(host, [""]);
  const step = [map.x[1] - map.x[0], map.y[1] - map.y[0]];
  const ends = ([first, size], values) => [first - size / 2, values.at(-1) + size / 2];
  const share = map.referred.flat().reduce((sum, one) => sum + one, 0) / (map.x.length * map.y.length);
  const plot = new Plot(panel, {
    x: ends([map.x[0], step[0]], map.x), y: ends([map.y[0], step[1]], map.y), xLabel: map.x_label, yLabel: map.y_label, height: 380,
    label: `map of ${map.x_label} and ${map.y_label}: ${words(100 * share, 3)} % of its area is referred`,
  });
  const cells = (values, draw) => values.forEach((row, j) => {
    let start = 0;
    for (let i = 1; i <= row.length; i += 1) {
      if (i < row.length && row[i] === row[start]) continue;
      const x = plot.px(map.x[start] - step[0] / 2);
      const y = plot.py(map.y[j] + step[1] / 2);
      draw(row[start], { x, y, width: plot.px(map.x[i - 1] + step[0] / 2) - x, height: plot.py(map.y[j] - step[1] / 2) - y });
      start = i;
    }
  });
  cells(map.shade, (level, rect) => { if (level) shape("rect", { ...rect, class: "density cell", "fill-opacity": ((0.6 * level) / (map.shades - 1)).toFixed(3) }, plot.under); });
  cells(map.referred, (refers, rect) => { if (refers) shape("rect", { ...rect, class: "referred cell" }, plot.under); });
  const [[x1, x2], [y1, y2]] = map.logged;
  shape("rect", { x: plot.px(x1), width: plot.px(x2) - plot.px(x1), y: plot.py(y2), height: plot.py(y1) - plot.py(y2), class: "range" }, plot.over);
  const cover = shape("rect", { x: plot.left, y: plot.top, width: plot.right - plot.left, height: plot.bottom - plot.top, class: "cover" }, plot.over);
  cover.addEventListener("mousemove", (event) => {
    const area = cover.getBoundingClientRect();
    const i = clip(Math.floor(((event.clientX - area.left) / area.width) * map.x.length), 0, map.x.length - 1);
    const j = clip(Math.floor((1 - (event.clientY - area.top) / area.height) * map.y.length), 0, map.y.length - 1);
    const dose = map.dose[j][i];
    cover.setAttribute("data-tip", `${map.x_label} ${words(map.x[i], 3)}, ${map.y_label} ${words(map.y[j], 3)}: ${map.referred[j][i] || dose === null ? "referred" : `centre ${words(dose, 3)}, ${map.dose_label}`}`);
  });
  host.append(legendOf([
    ["dense", null, "stronger: more logged states (other columns typical)"],
    ["refer", null, "referred to a person"],
    ["line", "var(--soft)", "range of the log", "2 3"],
  ]));
}

// Estimates with their intervals, beside practice.
function drawIntervals(host, { names, value, low, high, reference, level, x_label: xLabel }) {
  const [panel] = panelsIn(host, [""]);
  const every = [...low, ...high, ...value].filter((one) => one !== null);
  const margin = 0.08 * (Math.max(...every) - Math.min(...every) || 1);
  const plot = new Plot(panel, {
    x: [Math.min(...every) - margin, Math.max(...every) + margin], y: [0, names.length], yTicks: [], xLabel, height: 70 + 44 * names.length,
    label: names.map((name, k) => `${name}: ${words(value[k])}`).join("; "),
  });
  if (reference !== null) plot.vertical(reference, "reference");
  names.forEach((name, k) => {
    const y = names.length - k - 0.65;
    const text = `${name}: ${words(value[k])}, ${level} interval ${words(low[k])} to ${words(high[k])}`;
    const line = plot.line([[low[k], y], [high[k], y]], { colour: k ? "var(--c6)" : "var(--thin)", width: 4 });
    labelled(line, text);
    const dot = shape("circle", { cx: plot.px(value[k]), cy: plot.py(y), r: 5, class: k ? "done-mean" : "centre" }, plot.over);
    dot.setAttribute("data-tip", text);
    const above = plot.text(plot.left + 4, plot.py(y) - 9, name, "start");
    above.setAttribute("class", "row-name");
  });
  host.append(legendOf([["line", "var(--thin)", `estimate and ${level} interval`], ["line", "var(--soft)", "current practice", "1 3"]]));
}

// Proven bounds by ranges of one column.
function drawRanges(host, { names, low, high, found: worst, x_label: xLabel, y_label: yLabel }) {
  const [panel] = panelsIn(host, [""]);
  const every = [...low, ...high].filter((one) => one !== null);
  const margin = 0.08 * (Math.max(...every) - Math.min(...every) || 1);
  const plot = new Plot(panel, {
    x: [0.4, names.length + 0.6], y: [Math.min(...every) - margin, Math.max(...every) + margin], xTicks: [], xLabel, yLabel, height: 280,
    label: `proven bounds of ${yLabel} by ${xLabel}: at most ${words(Math.max(...every), 3)}`,
  });
  names.forEach((name, k) => {
    if (high[k] === null) return;
    const x = plot.px(k + 1);
    const bar = shape("rect", { x: x - 14, width: 28, y: plot.py(high[k]), height: Math.max(plot.py(low[k]) - plot.py(high[k]), 1.5), class: "band" }, plot.over);
    labelled(bar, `${xLabel} ${name}: proven from ${words(low[k])} to ${words(high[k])}; highest found ${words(worst[k])}`);
    if (worst[k] !== null) shape("line", { x1: x - 18, x2: x + 18, y1: plot.py(worst[k]), y2: plot.py(worst[k]), class: "done" }, plot.over);
    const label = plot.text(x, plot.bottom + 17, String(name), "middle");
    const [from, to] = String(name).split(/ (?=to )/);
    if (to && label.getComputedTextLength() > plot.px(2) - plot.px(1) - 6) { // in two lines
      label.textContent = from;
      label.setAttribute("y", plot.bottom + 13);
      plot.text(x, plot.bottom + 25, to, "middle");
    }
  });
  host.append(legendOf([["area", "var(--thin)", "proven: no dose outside"], ["line", "var(--logged)", "highest dose found"]]));
}

const PICTURES = { intervals: drawIntervals, ranges: drawRanges, bands: drawBands, histogram: drawHistogram, map: drawMap };

function drawPictures() {
  found.dossier.answers.forEach(({ picture }, i) => {
    const host = byId(`picture-${i + 1}`);
    if (!picture || !host) return;
    PICTURES[picture.kind](host, picture);
  });
}

function drawAll() {
  drawPictures();
  if (typeof found.policy !== "string") drawPatient();
}

const found = JSON.parse(byId("found").textContent);

function start() {
  startTables();
  startTips();
  startPatient();
  drawPictures();
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    drawAll();
  });
  // Paper is narrower than most screens: drawn for it, letters keep their size.
  for (const [event, paper] of [["beforeprint", true], ["afterprint", false]]) {
    window.addEventListener(event, () => {
      document.body.classList.toggle("paper", paper);
      drawAll();
    });
  }
}

start();
