// The maps of models: today's files above those of the copy, what flows between them, and how to find and inspect parts.
const SVG = "http://www.w3.org/2000/svg", UNITS = 1000, GAP = 44;
const FEW_FLOWS = 240; // up to so many are shown faintly all the time
const FINE_PX = 3; // a stroke would wash out what is thinner
const MOST_ZOOM = 32;
const SIDES = ["today", "after"];
const mapParts = new WeakMap();

// The data of a map and its rectangles, found once.
function partsOf(map) {
  if (!mapParts.has(map)) {
    if (!("built" in map.dataset)) addCells(map);
    const data = JSON.parse(map.dataset.map), files = {}, cells = {};
    for (const side of SIDES) files[side] = [...map.querySelectorAll(`.strip.${side} rect.file`)];
    cells.after = [...map.querySelectorAll(".strip.after rect[data-c]")];
    cells.today = [...map.querySelectorAll(".strip.today rect[data-c]")];
    const known = cells.after.filter((cell) => cell.dataset.t);
    const twins = new Map(cells.today.flatMap((cell, index) => [[cell, known[index]], [known[index], cell]]));
    const hint = map.querySelector(".readout span").textContent;
    mapParts.set(map, { data, files, cells, twins, hint, at: { side: "after", number: -1 }, zoom: 1, hits: [], hit: -1 });
  }
  return mapParts.get(map);
}

const make = (name, attributes) => {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
};
const titleOf = ([first, last]) => (first === last ? first : `${first} to ${last}`);
const columnOf = (map, side, number) => partsOf(map).data[side][number];
// The columns of a cell: in the copy, and today.
const columnsOf = (cell) => cell.dataset.c.split(" ").map(Number);
const numberIn = (side, cell) => columnsOf(cell)[side === "today" ? 1 : 0];

// --- Building what only the browser can measure

function addCells(map) {
  if (map.querySelector(".cursor")) return;
  // The cells of today are those of the copy, at other places.
  map.querySelector(".strip.today svg")?.append(...[...map.querySelectorAll("rect[data-t]")].map((cell) => {
    const [x, y, width, height] = cell.dataset.t.split(" "), { c, n } = cell.dataset;
    return make("rect", { class: cell.classList[0], x, y, width, height, "data-c": c, "data-n": n });
  }));
  for (const strip of map.querySelectorAll(".strip svg")) strip.append(make("rect", { class: "cursor" }));
}

function buildMap(map) {
  // Gradio turns the nodes of one map into those of the next, so what was found in them is out of date.
  mapParts.delete(map);
  const { data } = partsOf(map), ribbons = map.querySelector(".ribbons"), search = map.querySelector(".finder input");
  map.dataset.built = "";
  if (search) search.value = "";
  if (ribbons) {
    ribbons.classList.toggle("few", data.flows.length <= FEW_FLOWS);
    ribbons.replaceChildren(...data.flows.map(([today, after, bytes, x, wide, to, width]) => {
      const [high, low] = [GAP * 0.45, GAP * 0.55];
      const d = `M${x} 0C${x} ${low} ${to} ${high} ${to} ${GAP}H${to + width}C${to + width} ${high} ${x + wide} ${low} ${x + wide} 0Z`;
      return make("path", { d, "data-flow": `${today} ${after}`, "data-bytes": bytes });
    }));
  }
  hatch(map);
  const grid = map.querySelector(".grid svg");
  if (grid) {
    grid.replaceChildren(...data.experts.flatMap(([, runs], row) => {
      let start = 0;
      return runs.map(([experts, , first], run) => {
        const cell = make("rect", { x: start, y: row, width: experts, height: 1, class: first < 0 ? "none" : "expert" });
        cell.classList.toggle("odd", first % 2 === 1);
        cell.dataset.run = `${row} ${run}`;
        start += experts;
        return cell;
      });
    }), make("rect", { class: "cursor" }));
  }
  widths.observe(map.querySelector(".window"));
  lay(map);
}

// A pattern is found by its id in the whole page, and those of hidden maps draw nothing. So each map has its own.
let hatches = 0;
function hatch(map) {
  const pattern = map.querySelector(".hatch");
  if (!pattern) return;
  pattern.id = `hatch-${hatches += 1}`;
  map.querySelector("path.changes").style.fill = `url(#${pattern.id})`;
}

const widths = new ResizeObserver((changes) => changes.forEach(({ target }) => lay(target.closest(".map"))));

new MutationObserver(() => document.querySelectorAll(".map:not([data-built])").forEach(buildMap)).observe(document, {
  childList: true,
  subtree: true,
  attributeFilter: ["data-map"],
});

const pen = document.createElement("canvas").getContext("2d");
function widthOf(text, style) {
  pen.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  return pen.measureText(text).width;
}

// Place labels and names where there is room for them, and take the stroke from what is thin on this screen.
function lay(map) {
  const sheet = map.querySelector(".sheet"), strip = map.querySelector(".strip.after svg");
  if (!sheet.clientWidth) return;
  const pixels = sheet.clientWidth / UNITS, { cells, files } = partsOf(map);
  const high = strip.clientHeight / strip.viewBox.baseVal.height;
  for (const cell of [...cells.today, ...cells.after]) {
    const { width, height } = cell;
    cell.classList.toggle("fine", width.baseVal.value * pixels < FINE_PX || height.baseVal.value * high < FINE_PX);
  }
  // In pixels, whatever the strip is stretched to.
  map.querySelector(".hatch")?.setAttribute("patternTransform", `scale(${1 / pixels} ${1 / high})`);
  for (const side of SIDES) {
    const row = map.querySelector(`.labels.${side}`);
    if (row) labelFiles(map, row, side, files[side].map((file) => [file.x.baseVal.value * pixels, file.width.baseVal.value * pixels]));
  }
  map.querySelectorAll(".components").forEach((list) => stackNames(list, sheet.clientWidth));
  if (map.closest("#job-map")) colour(); // a wider column has room for its tick
}

function labelFiles(map, row, side, places) {
  const columns = partsOf(map).data[side], style = getComputedStyle(row);
  const texts = columns.map(([, , , size, files, number]) => {
    const name = !number ? "" : files > 1 ? `${number}–${number + files - 1}` : `${number}`;
    return { number, name, size, line: [name, size].filter(Boolean).join(" · ") };
  });
  const room = (of) => texts.filter((text, at) => widthOf(of(text), style) <= places[at][1]).length >= 0.8 * texts.length;
  const line = room((text) => text.line), two = !line && room((text) => (widthOf(text.name, style) > widthOf(text.size, style) ? text.name : text.size));
  const pitch = places.map(([, width]) => width).sort((a, b) => a - b)[places.length >> 1];
  const longest = Math.max(...texts.map(({ name }) => widthOf(name, style))) + 10;
  const step = line || two ? 1 : [1, 2, 5, 10, 20, 50, 100, 200].find((every) => every * pitch >= longest) ?? 500;
  let free = 0;
  row.replaceChildren();
  texts.forEach(({ number, name, size, line: both }, at) => {
    const [x, wide] = places[at];
    const first = at === 0 || number === 1 || step === 1 || (columns[at][4] > 1 ? at % step === 0 : number % step === 0);
    let lines = line ? [both] : two ? [name, size] : [name || size];
    if (lines.some((text) => widthOf(text, style) > wide) && (line || two || !name)) lines = [name];
    const width = Math.max(...lines.map((text) => widthOf(text, style)));
    const left = Math.min(Math.max(x + wide / 2 - width / 2, 0), row.clientWidth - width);
    if (!first || !width || left < free) return;
    free = left + width + 6;
    const span = document.createElement("span");
    span.style.left = `${left}px`;
    span.append(...lines.flatMap((text, index) => (index ? [document.createElement("br"), text] : [text])));
    row.append(span);
  });
  row.classList.toggle("two", two);
}

// Names of brackets stand in as many rows as they need.
function stackNames(list, width) {
  const ends = [];
  for (const bracket of list.children) {
    const name = bracket.querySelector("span"), long = name.offsetWidth, start = bracket.offsetLeft;
    const left = Math.min(Math.max(start + (bracket.offsetWidth - long) / 2, 0), width - long);
    let row = ends.findIndex((end) => end + 10 <= left);
    if (row < 0) row = ends.length;
    ends[row] = left + long;
    name.style.left = `${left - start}px`;
    name.style.setProperty("--row", row);
  }
  list.style.setProperty("--rows", ends.length);
}

// --- Marking a file, and saying what is there

function mark(map, side, number) {
  const { data, files, cells } = partsOf(map), on = number >= 0, place = side === "today" ? 0 : 1;
  for (const other of SIDES) {
    files[other].forEach((file, index) => file.classList.toggle("chosen", on && other === side && index === number));
    for (const cell of cells[other]) cell.classList.toggle("beside", on && numberIn(side, cell) !== number);
  }
  map.classList.toggle("pointed", on);
  map.querySelectorAll(".ribbons path").forEach((path, index) => {
    path.classList.toggle("on", on && data.flows[index][place] === number);
  });
  for (const cell of map.querySelectorAll(".grid rect[data-run]")) {
    const [, , first, last, firstToday, lastToday] = runOf(map, cell);
    const [from, to] = side === "today" ? [firstToday, lastToday] : [first, last];
    cell.classList.toggle("beside", on && !(from <= number && number <= to));
  }
}

// Outline a part, in both strips.
function outlineCells(map, ...cells) {
  for (const cursor of map.querySelectorAll(".strip .cursor")) {
    const cell = cells.find((other) => other?.parentNode === cursor.parentNode);
    for (const name of ["x", "y", "width", "height"]) cursor.setAttribute(name, cell?.getAttribute(name) ?? 0);
  }
}

function say(map, text) { map.querySelector(".readout span").textContent = text; }

function pointAt(map, side, cell) {
  const [after, today] = columnsOf(cell), from = columnOf(map, "today", today);
  say(map, `${cell.dataset.n}${from ? `, from ${titleOf(from)}` : ""} to ${titleOf(columnOf(map, "after", after))}`);
  mark(map, side, side === "today" ? today : after);
  outlineCells(map, cell, partsOf(map).twins.get(cell));
}

function describeFile(map, side, number) {
  const column = columnOf(map, side, number), [here, there] = side === "today" ? [0, 1] : [1, 0];
  const partners = partsOf(map).data.flows.filter((flow) => flow[here] === number);
  const other = columnOf(map, SIDES[there], partners[0]?.[there]);
  const where = partners.length > 1 ? `${partners.length} ${other[4] > 1 ? "columns" : "files"}` : other && titleOf(other);
  const flow = where ? `, ${side === "today" ? "to" : "from"} ${where}` : "";
  return `${titleOf(column)}: ${column[2]}, ${column[3]}${flow}.`;
}

function goTo(map, side, number) {
  const parts = partsOf(map), columns = parts.data[side];
  const taken = Math.min(Math.max(number, 0), columns.length - 1);
  parts.at = { side, number: taken };
  mark(map, side, taken);
  revealFile(map, side, taken);
  say(map, `${describeFile(map, side, taken)} Enter lists them.`);
}

// Nothing is pointed at any more. A file that was reached by keyboard stays marked.
function restOn(map) {
  const { hint, at, hits } = partsOf(map), strip = map.querySelector(`.strip.${at.side}`);
  say(map, hint);
  outlineCells(map);
  if (hits.length) return showHits(map);
  mark(map, at.side, document.activeElement === strip ? at.number : -1);
}

function choose(map, side, number) {
  if (number < 0) return;
  goTo(map, side, number);
  say(map, `${describeFile(map, side, number)} Its tensors are listed below.`);
  tell(map, { side, column: number });
}

document.addEventListener("mouseover", (event) => {
  const rect = event.target.closest(".map .strip:not(.grid) rect");
  if (!rect) return;
  const map = rect.closest(".map"), { side } = rect.closest(".strip").dataset;
  if (!rect.classList.contains("file")) return pointAt(map, side, rect);
  const number = partsOf(map).files[side].indexOf(rect);
  outlineCells(map);
  mark(map, side, number);
  say(map, describeFile(map, side, number));
});

document.addEventListener("mouseout", (event) => {
  const strip = event.target.closest?.(".map .strip");
  if (strip && !strip.contains(event.relatedTarget)) restOn(strip.closest(".map"));
});

document.addEventListener("focusout", (event) => {
  if (event.target.matches?.(".map .strip")) restOn(event.target.closest(".map"));
});

document.addEventListener("click", (event) => {
  const rect = event.target.closest(".map .strip:not(.grid) rect");
  if (!rect) return;
  const map = rect.closest(".map"), { side } = rect.closest(".strip").dataset;
  choose(map, side, rect.classList.contains("file") ? partsOf(map).files[side].indexOf(rect) : numberIn(side, rect));
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !event.target.matches?.(".map .strip")) return;
  const strip = event.target, map = strip.closest(".map");
  const done = strip.matches(".grid") ? walkGrid(map, event.key) : walkFiles(map, strip.dataset.side, event.key);
  if (done || zoomBy(map, event.key)) event.preventDefault();
});

function walkFiles(map, side, key) {
  const { data, at } = partsOf(map), number = at.side === side ? at.number : -1;
  const to = { ArrowRight: number + 1, ArrowLeft: number - 1, Home: 0, End: Infinity }[key];
  const other = { ArrowUp: "today", ArrowDown: "after" }[key];
  if (to !== undefined) goTo(map, side, to);
  else if (key === "Enter" && number >= 0) choose(map, side, number);
  else if (other && other !== side && data[other].length) {
    const [here, there] = side === "today" ? [0, 1] : [1, 0];
    const first = data.flows.find((flow) => flow[here] === number)?.[there] ?? 0;
    map.querySelector(`.strip.${other}`).focus();
    goTo(map, other, first);
  } else return false;
  return true;
}

// --- The experts

const runOf = (map, cell) => {
  const [row, run] = cell.dataset.run.split(" ").map(Number);
  return partsOf(map).data.experts[row][1][run];
};

function pointAtExpert(map, row, expert) {
  const [layer, runs] = partsOf(map).data.experts[row];
  let before = 0;
  const run = runs.find(([experts]) => (before += experts) > expert), [, bytes, first, last, firstToday, lastToday] = run;
  const named = (side, from, to) => [...new Set([from, to])].map((number) => titleOf(columnOf(map, side, number))).join(" and ");
  const from = firstToday < 0 ? "" : `, from ${named("today", firstToday, lastToday)}`;
  const cursor = map.querySelector(".grid .cursor");
  for (const [name, value] of Object.entries({ x: expert, y: row, width: 1, height: 1 })) cursor.setAttribute(name, value);
  mark(map, "after", first);
  say(map, first < 0 ? `${layer}, no expert ${expert}` : `${layer}, expert ${expert}, ${bytes}${from} to ${named("after", first, last)}`);
  return first;
}

const expertAt = (grid, event) => {
  const box = grid.getBoundingClientRect(), { width, height } = grid.viewBox.baseVal;
  const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  return [Math.min(Math.max(Math.floor(y * height), 0), height - 1), Math.min(Math.max(Math.floor(x * width), 0), width - 1)];
};

document.addEventListener("mousemove", (event) => {
  const grid = event.target.closest(".map .grid svg");
  if (grid) pointAtExpert(grid.closest(".map"), ...expertAt(grid, event));
});

document.addEventListener("click", (event) => {
  const grid = event.target.closest(".map .grid svg");
  if (grid) choose(grid.closest(".map"), "after", pointAtExpert(grid.closest(".map"), ...expertAt(grid, event)));
});

function walkGrid(map, key) {
  const parts = partsOf(map), { width, height } = map.querySelector(".grid svg").viewBox.baseVal;
  const [row, expert] = parts.expert ?? [0, -1];
  const steps = { ArrowRight: [row, expert + 1], ArrowLeft: [row, expert - 1], ArrowDown: [row + 1, expert], ArrowUp: [row - 1, expert] };
  const to = { ...steps, Home: [row, 0], End: [row, width - 1], Enter: [row, expert] }[key];
  if (!to) return false;
  parts.expert = [Math.min(Math.max(to[0], 0), height - 1), Math.min(Math.max(to[1], 0), width - 1)];
  const file = pointAtExpert(map, ...parts.expert);
  if (key === "Enter") choose(map, "after", file);
  return true;
}

// --- Zoom

function zoomTo(map, factor, at) {
  const parts = partsOf(map), view = map.querySelector(".window"), sheet = map.querySelector(".sheet");
  const point = at ?? view.clientWidth / 2, share = (view.scrollLeft + point) / sheet.clientWidth;
  parts.zoom = Math.min(Math.max(parts.zoom * factor, 1), MOST_ZOOM);
  map.style.setProperty("--zoom", parts.zoom);
  map.classList.toggle("zoomed", parts.zoom > 1);
  view.scrollLeft = share * sheet.clientWidth - point;
  map.querySelector("[data-zoom=out]").disabled = parts.zoom === 1;
  map.querySelector("[data-zoom=in]").disabled = parts.zoom === MOST_ZOOM;
  lay(map);
}

function zoomBy(map, key) {
  const factor = { "+": 2, "=": 2, "-": 0.5, 0: 0 }[key];
  if (factor === undefined || !map.querySelector(".finder")) return false;
  zoomTo(map, factor);
  if (partsOf(map).at.number >= 0) revealFile(map, partsOf(map).at.side, partsOf(map).at.number);
  return true;
}

function revealFile(map, side, number) {
  const view = map.querySelector(".window"), file = partsOf(map).files[side][number];
  const pixels = map.querySelector(".sheet").clientWidth / UNITS, start = file.x.baseVal.value * pixels;
  const end = start + file.width.baseVal.value * pixels;
  if (start < view.scrollLeft || end > view.scrollLeft + view.clientWidth) {
    view.scrollLeft = (start + end - view.clientWidth) / 2;
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest(".map [data-zoom]");
  if (button) zoomTo(button.closest(".map"), button.dataset.zoom === "in" ? 2 : 0.5);
});

document.addEventListener("wheel", (event) => {
  const view = event.ctrlKey && event.target.closest?.(".map:has(.finder) .window");
  if (!view) return;
  event.preventDefault();
  zoomTo(view.closest(".map"), event.deltaY < 0 ? 1.25 : 0.8, event.clientX - view.getBoundingClientRect().left);
}, { passive: false });

// --- Search

const byNumber = new Intl.Collator("en", { numeric: true });
const tokensOf = (name) => name.toLowerCase().split(/(\d+)/).filter(Boolean);

// Whether a name lies between two others: "model-00012" between "model-00001-of-00300" and "model-00013-of-00300".
function isBetween(first, last, name) {
  const [low, high, asked] = [first, last, name].map(tokensOf), length = Math.min(low.length, asked.length);
  const [from, to, at] = [low, high, asked].map((parts) => parts.slice(0, length).join(""));
  return length > 1 && low[0] === asked[0] && byNumber.compare(from, at) <= 0 && byNumber.compare(at, to) <= 0;
}

// The columns of the experts that are asked for: those of a layer, or one of them. The map has no cells for their tensors.
function findExperts(map, asked) {
  const found = { today: new Set(), after: new Set() }, named = asked.match(/^(.*?)\.?(?:\w+\.)?experts(?:\.(\d+)(?:\.|$))?/);
  for (const [layer, runs] of partsOf(map).data.experts) {
    const name = `.${layer.toLowerCase()}.`;
    if (named ? !name.endsWith(named[1] ? `.${named[1]}.` : "") : !name.includes(`.${asked.replace(/^\./, "")}`)) continue;
    let before = 0;
    for (const [experts, , first, last, firstToday, lastToday] of runs) {
      const holds = !named?.[2] || (before <= named[2] && named[2] < before + experts);
      before += experts;
      if (!holds) continue;
      for (const [side, from, to] of [["after", first, last], ["today", firstToday, lastToday]]) {
        for (let column = from; from >= 0 && column <= to; column++) found[side].add(column);
      }
    }
  }
  return found;
}

// The columns that hold what is asked for: a part of a name, or the number of a file.
function findColumns(map, text) {
  const { data, cells } = partsOf(map), asked = text.trim().toLowerCase(), hits = [];
  if (!asked) return hits;
  const number = /^\d+$/.test(asked) ? Number(asked) : 0, experts = number ? {} : findExperts(map, asked);
  const ofExperts = data.experts.length > 0 && asked.includes("experts");
  for (const side of SIDES.toReversed()) {
    const numbers = new Set(experts[side]);
    data[side].forEach(([first, last, , , files, start], at) => {
      const named = [first, last].some((name) => name.toLowerCase().includes(asked)) || isBetween(first, last, asked);
      if (number ? start && start <= number && number < start + files : named) numbers.add(at);
    });
    if (!number && !ofExperts) {
      for (const cell of cells.after) {
        const title = cell.dataset.n.toLowerCase(), layers = title.match(/ tensors? in (\S+?)(?: to (\S+))?, /);
        const held = title.includes(asked) || (layers && isBetween(layers[1], layers[2] ?? layers[1], asked));
        const at = held ? numberIn(side, cell) : -1;
        if (at >= 0) numbers.add(at);
      }
    }
    hits.push(...[...numbers].sort((a, b) => a - b).map((at) => ({ side, number: at })));
  }
  return hits;
}

// Show where the matches are.
function showHits(map) {
  const { files, cells, hits } = partsOf(map);
  mark(map, "after", -1);
  for (const side of SIDES) {
    const numbers = new Set(hits.filter((hit) => hit.side === side).map((hit) => hit.number));
    files[side].forEach((file, index) => file.classList.toggle("found", numbers.has(index)));
    for (const cell of cells[side]) cell.classList.toggle("beside", hits.length > 0 && !numbers.has(numberIn(side, cell)));
  }
}

document.addEventListener("input", (event) => {
  if (!event.target.matches(".map .finder input")) return;
  const map = event.target.closest(".map"), parts = partsOf(map), asked = event.target.value.trim();
  Object.assign(parts, { hits: findColumns(map, asked), hit: -1 });
  showHits(map);
  const copy = parts.hits.filter(({ side }) => side === "after").length, today = parts.hits.length - copy;
  const places = `${copy} of the copy${today ? `, ${today} of today` : ""}`;
  const what = SIDES.some((side) => parts.data[side].some((column) => column[4] > 1)) ? "Columns" : "Files";
  say(map, !asked ? parts.hint : parts.hits.length ? `${what} that match: ${places}. Enter goes from one to the next.` : "No file or tensor has this name.");
  if (parts.hits.length) revealFile(map, parts.hits[0].side, parts.hits[0].number);
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !event.target.matches?.(".map .finder input")) return;
  event.preventDefault();
  const map = event.target.closest(".map"), parts = partsOf(map);
  if (!parts.hits.length) return;
  parts.hit = (parts.hit + 1) % parts.hits.length;
  const { side, number } = parts.hits[parts.hit];
  goTo(map, side, number);
  say(map, `${parts.hit + 1} of ${parts.hits.length}: ${describeFile(map, side, number)}`);
});

// --- A job: each file fills with colour from below as it is written, and is ticked when it has been read again.
const MARK_PX = 16; // a narrower column has a line without a tick
const runsOf = (text) => (text ? text.split(",").map((run) => run.split("-").map(Number)) : []);
const isIn = (runs, number) => runs.some(([first, last]) => first <= number && number <= last);

function colour() {
  const job = document.querySelector("#progress .job"), map = document.querySelector("#job-map .map");
  if (!job || !map) return;
  const { data, files, cells } = partsOf(map), strip = map.querySelector(".strip.after");
  const [whole, gone] = ["done", "cancelled"].map((state) => job.classList.contains(state));
  const [finished, checked] = [job.dataset.finished, job.dataset.checked].map(runsOf);
  const filling = new Map((job.dataset.filling || "").split(",").filter(Boolean).map((part) => part.split(":").map(Number)));
  const written = (number) => (gone ? 0 : whole || isIn(finished, number) ? 1 : (filling.get(number) ?? 0) / 100);
  const veils = veilsOf(map), marks = marksOf(map);
  let next = 0;
  // A column of several files is as full as they are on average, and has its tick when all of them have.
  const shares = data.after.map(([, , , , count], column) => {
    const numbers = Array.from({ length: count }, () => next++);
    const share = numbers.reduce((sum, number) => sum + written(number), 0) / count;
    veils[column].setAttribute("height", (1 - share) * strip.firstElementChild.viewBox.baseVal.height);
    const proved = !gone && numbers.every((number) => whole || isIn(checked, number));
    marks[column].classList.toggle("proved", proved);
    marks[column].textContent = proved && marks[column].clientWidth >= MARK_PX ? "✓" : "";
    return share;
  });
  for (const cell of cells.after) cell.classList.toggle("waiting", !shares[numberIn("after", cell)]);
  map.querySelectorAll(".ribbons path").forEach((path, index) => path.classList.toggle("waiting", !shares[data.flows[index][1]]));
}

// What covers the part of each column that is not written yet.
function veilsOf(map) {
  const svg = map.querySelector(".strip.after svg"), drawn = [...svg.querySelectorAll(".veil")];
  if (drawn.length === partsOf(map).files.after.length) return drawn;
  drawn.forEach((veil) => veil.remove());
  const veils = partsOf(map).files.after.map((file) => make("rect", { class: "veil", x: file.getAttribute("x") ?? 0, width: file.getAttribute("width") }));
  svg.querySelector(".cursor").before(...veils);
  return veils;
}

function marksOf(map) {
  const row = map.querySelector(".marks-of-proof");
  const files = partsOf(map).files.after;
  if (row?.children.length === files.length) return [...row.children];
  row?.remove();
  const added = document.createElement("div");
  added.className = "marks-of-proof";
  added.setAttribute("aria-hidden", "true");
  added.append(...files.map((file) => {
    const mark = document.createElement("span");
    mark.style.left = `${file.x.baseVal.value / UNITS * 100}%`;
    mark.style.width = `${file.width.baseVal.value / UNITS * 100}%`;
    return mark;
  }));
  map.querySelector(".strip.after").after(added);
  return [...added.children];
}
