// The maps of models: their two sides, what the pointer and the keys say, and the files that a job has finished.
const SVG = ["x", "y", "width", "height"];

function turn(map, side) {
  if (map.dataset.side === side) return;
  map.dataset.side = side;
  for (const button of map.querySelectorAll(".sides button")) {
    button.setAttribute("aria-pressed", String(button.dataset.side === side));
  }
  for (const cell of map.querySelectorAll("rect[data-t]")) place(cell, side);
  mark(map, -1);
}

// The attributes hold the corners in the copy. Those in today's files are in data-t.
function place(cell, side) {
  cell.dataset.a ??= SVG.map((name) => cell.getAttribute(name)).join(" ");
  const corners = (side === "today" ? cell.dataset.t : cell.dataset.a).split(" ");
  SVG.forEach((name, index) => cell.setAttribute(name, corners[index]));
}

const columnsOf = (map, side) => JSON.parse(map.querySelector(".strip").dataset.columns)[side ?? map.dataset.side];
const numberOf = (map, cell) => Number(cell.dataset.c.split(" ")[map.dataset.side === "today" ? 1 : 0]);

function mark(map, number) {
  map.dataset.column = number;
  const sides = map.querySelectorAll(`rect.file.${map.dataset.side}`);
  sides.forEach((file, index) => file.classList.toggle("chosen", index === number));
  map.classList.toggle("pointed", number >= 0);
  for (const cell of map.querySelectorAll("rect[data-c]")) {
    cell.classList.toggle("beside", number >= 0 && numberOf(map, cell) !== number);
  }
}

function say(map, text) { map.querySelector(".readout").textContent = text; }

function pointAt(map, cell) {
  const [after, today] = cell.dataset.c.split(" ").map(Number);
  const from = columnsOf(map, "today")[today], to = columnsOf(map, "after")[after];
  say(map, `${cell.dataset.n}${from ? `, from ${from[0]}` : ""} to ${to[0]}`);
}

function goTo(map, number) {
  const columns = columnsOf(map), taken = Math.min(Math.max(number, 0), columns.length - 1);
  const [title, tensors, bytes] = columns[taken];
  mark(map, taken);
  say(map, `${title}: ${tensors}, ${bytes}. Enter lists them.`);
}

document.addEventListener("mouseover", (event) => {
  const cell = event.target.closest(".map rect[data-c]");
  if (cell) pointAt(cell.closest(".map"), cell);
});

document.addEventListener("click", (event) => {
  const button = event.target.closest(".map .sides button");
  if (button) return turn(button.closest(".map"), button.dataset.side);
  const part = event.target.closest(".map .strip rect");
  if (!part) return;
  const map = part.closest(".map");
  const files = [...map.querySelectorAll(`rect.file.${map.dataset.side}`)];
  choose(map, part.dataset.c ? numberOf(map, part) : files.indexOf(part));
});

function choose(map, number) {
  if (number < 0) return;
  goTo(map, number);
  tell(map, { side: map.dataset.side, column: number });
}

document.addEventListener("keydown", (event) => {
  if (!event.target.matches?.(".map .strip")) return;
  const map = event.target.closest(".map"), at = Number(map.dataset.column ?? -1);
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: Infinity }[event.key];
  if (to !== undefined) goTo(map, to);
  else if (event.key === "Enter" && at >= 0) choose(map, at);
  else if (event.key === "t") turn(map, map.dataset.side === "today" ? "after" : "today");
  else return;
  event.preventDefault();
});

// At the first look at a model, the map moves from today's files to those of the copy.
function play(map) {
  delete map.dataset.plays;
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  map.dataset.side = "after";
  if (still) return;
  map.classList.add("still");
  turn(map, "today");
  setTimeout(() => { map.classList.remove("still"); turn(map, "after"); }, 700);
}

// Finished files are in colour, until the job is discarded.
function colour() {
  const job = document.querySelector("#progress .job"), map = document.querySelector("#job-map .map");
  if (!job || !map) return;
  const runs = job.dataset.finished ? job.dataset.finished.split(",").map((run) => run.split("-").map(Number)) : [];
  const [whole, gone] = ["done", "cancelled"].map((state) => job.classList.contains(state));
  const done = (number) => whole || (!gone && runs.some(([first, last]) => first <= number && number <= last));
  let next = 0;
  const finished = columnsOf(map, "after").map(([, , , files]) => {
    const numbers = Array.from({ length: files }, () => next++);
    return numbers.every(done);
  });
  for (const cell of map.querySelectorAll("rect[data-c]")) {
    cell.classList.toggle("waiting", !finished[Number(cell.dataset.c.split(" ")[0])]);
  }
}
