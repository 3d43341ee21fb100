// Save a map as a picture: what is drawn of it on a wide page, in the colours that it has now, in a file that needs nothing else.
const PICTURE_PX = 1160, MARGIN_PX = 24, TITLE_PX = 44;

// Draw again what an element shows: its ground, its letters, or its shapes. `place` is where the map begins on the page.
function* drawn(node, place) {
  if (node.nodeType === Node.TEXT_NODE) return yield* letters(node, place);
  if (node.nodeType !== Node.ELEMENT_NODE) return;
  const style = getComputedStyle(node), box = node.getBoundingClientRect();
  if (style.display === "none" || !box.width) return;
  const at = { x: box.left - place.left, y: box.top - place.top, width: box.width, height: box.height };
  if (node.matches("svg")) return yield shapes(node, at);
  if (style.backgroundColor !== "rgba(0, 0, 0, 0)") yield make("rect", { ...at, rx: parseFloat(style.borderRadius) || 0, fill: style.backgroundColor });
  for (const child of node.childNodes) yield* drawn(child, place);
}

function* letters(node, place) {
  const range = document.createRange(), parent = node.parentElement, style = getComputedStyle(parent);
  const text = node.textContent.replace(/\s+/g, " ").trim();
  if (!text) return;
  range.selectNodeContents(node);
  const box = range.getBoundingClientRect(), shown = parent.closest("li, p, span").getBoundingClientRect();
  const fits = style.overflow === "hidden" && box.width > shown.width ? Math.floor((text.length * shown.width) / box.width) - 1 : text.length;
  const words = make("text", {
    x: box.left - place.left, y: box.top - place.top + box.height * 0.78,
    "font-size": style.fontSize, "font-weight": style.fontWeight, fill: style.color,
  });
  words.textContent = fits < text.length ? `${text.slice(0, Math.max(fits, 0))}…` : text;
  yield words;
}

function shapes(svg, at) {
  const copy = make("svg", { ...at, viewBox: svg.getAttribute("viewBox"), preserveAspectRatio: "none" });
  for (const shape of svg.children) {
    if (shape.matches("defs")) {
      const line = getComputedStyle(shape.querySelector("path")), same = shape.cloneNode(true);
      for (const name of ["fill", "stroke", "stroke-width", "stroke-opacity"]) same.querySelector("path").setAttribute(name, line.getPropertyValue(name));
      copy.append(same);
      continue;
    }
    const style = getComputedStyle(shape), same = make(shape.tagName, { fill: style.fill });
    for (const name of ["x", "y", "width", "height", "d"]) if (shape.hasAttribute(name)) same.setAttribute(name, shape.getAttribute(name));
    if (style.opacity !== "1") same.setAttribute("opacity", style.opacity);
    if (style.stroke !== "none") {
      const line = { stroke: style.stroke, "stroke-width": style.strokeWidth, "stroke-opacity": style.strokeOpacity };
      for (const [name, value] of Object.entries({ ...line, "vector-effect": "non-scaling-stroke" })) same.setAttribute(name, value);
    }
    if (style.opacity !== "0" && style.display !== "none") copy.append(same);
  }
  return copy;
}

// A copy of the map beside it, out of sight and as wide as on a desk, is measured and drawn.
function pictureOf(map) {
  const copy = map.cloneNode(true);
  copy.classList.add("posing");
  copy.classList.remove("zoomed", "pointed");
  copy.style.setProperty("--zoom", 1);
  copy.style.width = `${PICTURE_PX}px`;
  map.after(copy);
  try {
    mark(copy, "after", -1);
    lay(copy);
    const place = copy.getBoundingClientRect(), style = getComputedStyle(copy);
    const [width, height] = [PICTURE_PX + 2 * MARGIN_PX, place.height + TITLE_PX + 2 * MARGIN_PX].map(Math.ceil);
    const picture = make("svg", { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}`, "font-family": "system-ui, sans-serif" });
    const title = make("title", {}), head = make("text", { x: 0, y: -24, "font-size": 20, "font-weight": 650, fill: style.color });
    title.textContent = head.textContent = map.dataset.title;
    const body = make("g", { transform: `translate(${MARGIN_PX} ${MARGIN_PX + TITLE_PX})` });
    body.append(head, ...drawn(copy, place));
    picture.append(title, make("rect", { width, height, rx: 12, fill: style.getPropertyValue("--surface") }), body);
    return { text: new XMLSerializer().serializeToString(picture), width, height };
  } finally {
    copy.remove();
  }
}

function offerFile(content, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(content), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

async function savePicture(map, kind) {
  const { text, width, height } = pictureOf(map), name = `${map.dataset.file}.${kind}`;
  const svg = new Blob([text], { type: "image/svg+xml" });
  if (kind === "svg") return offerFile(svg, name);
  const image = new Image(), address = URL.createObjectURL(svg);
  image.src = address;
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width: 2 * width, height: 2 * height });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(address);
  canvas.toBlob((content) => offerFile(content, name));
}

document.addEventListener("click", (event) => {
  const button = event.target.closest(".map [data-save]");
  if (button) savePicture(button.closest(".map"), button.dataset.save);
});
