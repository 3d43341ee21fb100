// What only the browser can do: the address and title, copying, the slider, the maps, the time that passes.
let leaves = null; // What to do once the browser has gone back.
window.shardMyRepo = {
  address(query, ends = false) {
    if (!query || query === window.location.search) return;
    // "Back" leads from a job to its plan. Among choices only the last one is kept.
    const kind = (search) => (search.match(/^\?(repo|job|result|compare)=/) ?? [])[1];
    // A plan or a comparison that arrives after the job has started must not replace its address.
    const isJob = kind(window.location.search) === "job";
    if (["repo", "compare"].includes(kind(query)) && isJob && !ends) return;
    // A job becomes what it has found, so "Back" must not lead to the job, which would become that again.
    const goes = kind(query) !== kind(window.location.search) && kind(window.location.search) && !(isJob && ends);
    if (goes && kind(query) === "job") this.before = kind(window.location.search) === "result";
    if (isJob && ends && this.before) {
      // "Back" leads from what a job has measured or read to what was before it, not to the same once more.
      this.before = false;
      leaves = () => this.address(query);
      return window.history.back();
    }
    window.history[goes ? "pushState" : "replaceState"](window.history.state, "", query);
    // A Space is in a frame. The Hub copies the address from it.
    if (window.parent !== window) {
      window.parent.postMessage({ queryString: query.slice(1) }, "https://huggingface.co");
    }
  },

  // Show a job that was taken from its top.
  taken(query, job) {
    this.address(job ? `?job=${encodeURI(job)}` : query);
    if (job) window.scrollTo({ top: 0 });
  },

  // Sign in or out, and come back to the choices in `query`. If the visitor wanted to start, this tab keeps that.
  leave(query) {
    this.address(query);
    if (wantsStart) sessionStorage.setItem("start", JSON.stringify([window.location.search, Date.now()]));
    window.location.assign(`${door}?_target_url=${encodeURIComponent("/" + window.location.search)}`);
  },

  // A proposal may arrive while the visitor writes a name.
  ownName(proposed) { return writtenName || proposed; },

  // Start what the visitor wanted to start before signing in, with the first plan of this page, or never.
  goOn(looks = 60) {
    if (!goesOn) return;
    const start = document.querySelector("#start"), canStart = start && !start.disabled && !signsIn(start);
    goesOn = !canStart && looks > 0;
    if (canStart) start.click();
    else if (goesOn) setTimeout(() => this.goOn(looks - 1), 50); // the button may be a moment later than its words
  },

  // If a start was refused, show the visitor the reason. Otherwise scroll to the top, where the progress is.
  started(looks = 60) {
    const refusal = document.querySelector("#start-message [role=alert]");
    if (refusal) {
      refusal.tabIndex = -1;
      refusal.focus();
      refusal.scrollIntoView({ block: "center" });
    } else if (document.querySelector("#progress .job") || !looks) {
      window.scrollTo({ top: 0, behavior: "smooth" });
      const heading = document.querySelector("#run-heading h2");
      heading?.setAttribute("tabindex", "-1"); // the button that had the focus is gone
      heading?.focus({ preventScroll: true });
    } else {
      requestAnimationFrame(() => this.started(looks - 1));
    }
  },

  // The first field of the form for a goal that was just chosen.
  aimed() {
    const fields = [...document.querySelectorAll("#choose .block :is(input, textarea)")];
    const empty = fields.find((field) => field.checkVisibility() && !field.value);
    if (empty) setTimeout(() => empty.focus(), 50); // after what is drawn anew
  },

  showList() {
    const list = [...document.querySelectorAll(".tensors")].at(-1);
    list?.removeAttribute("hidden");
    list?.scrollIntoView({ block: "nearest" });
  },

  // The old plan fades until the new one is there, so that it does not look like the answer to a new choice.
  busy() { document.body.classList.add("busy"); },
  ready() {
    const stale = isStale();
    document.body.classList.toggle("busy", stale);
    if (!stale) follow();
  },
};

// Whether a field shows another choice than the one that the plan was made for.
function isStale() {
  const summary = document.querySelector("#summary [data-choices]");
  return Object.entries(JSON.parse(summary?.dataset.choices ?? "{}")).some(([id, planned]) => {
    const parts = [...document.querySelectorAll(`#${id} :is(input, textarea)`)];
    const [part] = parts, kind = part?.type;
    if (!part) return false;
    if (kind === "checkbox") return part.checked !== planned;
    const value = kind === "radio" ? parts.find((radio) => radio.checked)?.value : part.value;
    return (value ?? "").trim() !== String(planned);
  });
}

// Nothing starts with a choice that the plan does not show.
document.addEventListener("click", (event) => {
  if (!event.target.closest("#start") || !(document.body.classList.contains("busy") || isStale())) return;
  event.stopPropagation();
  event.preventDefault();
}, true);

// What a visitor wanted to start before signing in: the same choices, in the same tab, lately. A link alone is no wish.
function wantedStart() {
  const [search, at] = JSON.parse(sessionStorage.getItem("start") ?? "[]");
  sessionStorage.removeItem("start");
  return search === window.location.search && Date.now() - at < 600_000;
}

const signsIn = (start) => start.textContent.includes("Sign in");
let writtenName = "", door = "", wantsStart = false, goesOn = wantedStart();
document.addEventListener("input", (event) => {
  if (event.target.closest("#name")) writtenName = event.target.value;
});

// The panel around the part receives the event and asks the server.
const tell = (part, detail) => part.dispatchEvent(new CustomEvent("chosen", { bubbles: true, detail }));

// The first view comes with the page. It stands until Gradio has built what the link opens.
const opens = document.body.className.match(/opens-\w+/)?.[0] ?? "opens-home";
const BUILT = { home: "#goals .cards", goal: "#goals .goal", repo: "#goals .chips", job: "#run", result: "#outcome", same: "#same" };
const LATE = Date.now() + 20_000; // The page is better than a first view that waits for a part which never comes.
function arrived() {
  const first = document.getElementById("first"), field = document.querySelector("#repo input");
  const parts = [BUILT[opens.slice(6)], "#masthead .brand", ...(document.getElementById("first-repo") ? ["#repo input"] : [])];
  if (!first || !(Date.now() > LATE || parts.every((part) => document.querySelector(part)))) return;
  const { value, selectionStart } = document.getElementById("first-repo") ?? {};
  const writes = document.activeElement.id === "first-repo";
  first.remove();
  document.body.classList.remove(opens);
  document.documentElement.classList.remove("dark"); // Gradio has put it on the body
  if (value && field) {
    field.value = value;
    field.dispatchEvent(new Event("input", { bubbles: true }));
  }
  if (writes && field) {
    field.focus();
    field.setSelectionRange(selectionStart, selectionStart);
  }
}

window.addEventListener("popstate", () => {
  if (!leaves) return window.location.reload();
  leaves();
  leaves = null; // what comes next is the visitor's
});

// --- Choices that the visitor waits for

const CHOICES = "#size, #machines, .choice, #variants";
document.addEventListener("change", (event) => event.target.closest(CHOICES) && window.shardMyRepo.busy());
document.addEventListener("input", (event) => event.target.closest("#size, #machines") && window.shardMyRepo.busy());
document.addEventListener("click", (event) => {
  const example = event.target.closest("#examples button, #examples .gallery-item");
  if (example) document.body.classList.add("named");
  if (example || event.target.closest("#show")) window.shardMyRepo.busy();
});

// --- Goals

// A link, so that it opens in a tab of its own too. In this one the form stays as it is filled in.
document.addEventListener("click", (event) => {
  const link = event.target.closest("#goals a[data-goal]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const goal = new URLSearchParams(link.search).get("goal");
  if (document.querySelector("#plan")) {
    window.shardMyRepo.busy();
  } else window.history.pushState(window.history.state, "", link.search); // "Back" leads to all goals
  tell(link, { goal }); // before the card goes
  aimAt(link);
});

// Show a goal as the server will: what moved a moment later would move under the hand.
function aimAt(link) {
  const goals = link.closest(".goals"), words = document.createElement("p");
  goals.querySelector("[aria-current]")?.removeAttribute("aria-current");
  link.setAttribute("aria-current", "true");
  goals.dataset.fields = link.dataset.needs;
  goals.querySelectorAll(":scope > :not(.chips)").forEach((old) => old.remove());
  words.className = "muted";
  words.textContent = link.dataset.words;
  if (link.matches(".card")) goals.replaceChildren(headOf(link));
  goals.append(words);
}

// What a card becomes above the form of its goal.
function headOf(card) {
  const head = document.createElement("div"), title = document.createElement("h2"), all = document.createElement("a");
  Object.assign(head, { className: "goal" });
  Object.assign(title, { className: "step-title", textContent: card.querySelector("b").textContent });
  Object.assign(all, { className: "all", href: "./", textContent: "All goals" });
  head.append(card.querySelector("svg"), title, all);
  return head;
}

// Who has named a model is done with the cards, at once: what moves later would move under the hand.
function named() {
  const field = document.querySelector("#repo input");
  document.body.classList.toggle("named", Boolean(field?.value.trim()));
}
document.addEventListener("keydown", (event) => event.key === "Enter" && event.target.closest?.("#repo") && named());
document.addEventListener("change", (event) => event.target.closest("#repo") && window.shardMyRepo.busy());
document.addEventListener("click", (event) => event.target.closest("#show") && named());

// --- Groups of radios

// Gradio gives every radio a name of its own, so that arrow keys do not move the choice. The group's name heals that.
function group(set) {
  const radios = set.querySelectorAll("input[type=radio]");
  for (const radio of radios) if (radio.name !== set.id) radio.name = set.id;
  if (radios.length) set.setAttribute("aria-label", set.querySelector("[data-testid=block-info]")?.innerText ?? "");
}

// --- Lists of suggestions

// Gradio opens a list again at any key, and so also at the Tab that leaves its field.
document.addEventListener("keydown", (event) => {
  if (event.key === "Tab" && event.target.matches?.("input[role=combobox]")) event.stopPropagation();
}, true);

// --- The slider of sizes

let sliding = 0;
const stopsOf = (slider) => JSON.parse(slider.closest(".slider").dataset.stops);
const written = () => document.querySelector("#size :is(input, textarea)");

// Stand at a stop, or beside it if `size` lies between two.
function show(slider, index, size) {
  const stop = stopsOf(slider)[index], panel = slider.closest(".slider");
  slider.value = index;
  slider.setAttribute("aria-valuetext", size ?? stop.size);
  panel.querySelector(".reason").textContent = size && size !== stop.size ? "" : stop.reason;
}

// The slider writes into the field. So there is one size, and one event that draws it.
function slide(slider, index) {
  show(slider, index);
  const field = written();
  field.value = stopsOf(slider)[index].size;
  field.dispatchEvent(new Event("input", { bubbles: true }));
  clearTimeout(sliding);
  sliding = setTimeout(() => field.dispatchEvent(new KeyboardEvent("keypress", { key: "Enter", bubbles: true })), 120);
}

// A plan brings the stop for its size. The server does not draw the slider again: somebody may be moving it.
function follow() {
  const slider = document.querySelector("#size-slider"), at = document.querySelector("#summary p")?.dataset.at;
  if (slider && at) show(slider, Number(at), written().value.trim());
}

document.addEventListener("input", (event) => {
  if (event.target.id === "size-slider") slide(event.target, event.target.value);
});

document.addEventListener("click", (event) => {
  const mark = event.target.closest(".marks [data-index]");
  if (mark) slide(mark.closest(".slider").querySelector("input"), mark.dataset.index);
});

// The list of the tensors of a file. It stays in the page when it is closed, because Gradio writes nothing that is the same.
document.addEventListener("click", (event) => {
  event.target.closest("[data-close]")?.closest(`.${event.target.dataset.close}`)?.setAttribute("hidden", "");
});

// Without a model there is no plan.
document.addEventListener("click", (event) => {
  const field = event.target.closest("#show") && document.querySelector("#repo input");
  if (!field || field.value.trim()) return;
  field.focus();
  field.setCustomValidity("Name a model first.");
  field.reportValidity();
  field.addEventListener("input", () => field.setCustomValidity(""), { once: true });
});

// --- A job

// The log and the private link stay open when the server writes them again.
const opened = { "#log details": false, "#progress details": false };
document.addEventListener("click", (event) => {
  const details = event.target.closest("summary")?.parentElement;
  for (const place in opened) if (details?.matches(place)) opened[place] = !details.open;
});
// The server has written the title of what the link opens into the head. Gradio puts its own in the tab.
const TITLE = document.querySelector("meta[property='og:title']")?.content ?? "Shard My Repo";
let heard = Date.now();

const passed = (seconds) => {
  const whole = Math.max(Math.round(seconds), 0), minutes = Math.floor(whole / 60);
  if (minutes >= 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return minutes ? `${minutes} min ${whole % 60} s` : `${whole} s`;
};

function tick() {
  const job = document.querySelector(".job");
  const active = job && "active" in job.dataset;
  const state = active && job.dataset.percent ? `${job.dataset.percent}%` : job?.querySelector(".state")?.textContent.trim();
  const runs = document.querySelector(".signed-in .runs");
  if (runs?.querySelector("a").search === window.location.search) runs.remove(); // this page shows that job, and its end
  document.title = job ? `${state} · ${TITLE}` : TITLE;
  const elapsed = job?.querySelector(".elapsed");
  const soFar = elapsed && `${passed(Date.now() / 1000 - elapsed.dataset.since)} so far`;
  if (elapsed && elapsed.textContent !== soFar) elapsed.textContent = soFar; // else the observer below would call for ever
  const silence = job?.querySelector(".silence"), seconds = (Date.now() - heard) / 1000;
  if (silence) {
    silence.hidden = !(active && job.classList.contains("running") && seconds > 20);
    silence.querySelector("span").textContent = passed(seconds);
  }
}
setInterval(tick, 1000);
setTimeout(arrived, 20_500);

// --- What the server has written

// Watch for new nodes, and for the attributes that only the server changes. Others would call this again for ever.
const told = ["data-finished", "data-filling", "data-checked", "data-percent", "data-active", "data-tick", "name"];
new MutationObserver((changes) => {
  const nodes = changes.flatMap(({ target, addedNodes }) => [target instanceof Text ? target.parentElement : target, ...addedNodes]);
  const parts = nodes.filter((node) => node instanceof Element);
  const has = (what) => parts.some((part) => part.matches(what) || part.querySelector(what));
  if (has("#progress .job") || changes.some((change) => change.type === "attributes")) heard = Date.now();
  if (has("#progress .job, #job-map .map")) colour();
  if (has(".job, #progress .elapsed")) tick();
  document.querySelectorAll("fieldset[id]").forEach(group);
  arrived();
  tellTrouble();
  for (const place in opened) if (opened[place]) document.querySelector(place)?.setAttribute("open", "");
  document.querySelectorAll("[data-press]").forEach(offer);
  document.querySelectorAll(".jobs time:not([title])").forEach(localTime);
}).observe(document, { childList: true, subtree: true, characterData: true, attributes: true, attributeFilter: told });

// The server writes times in UTC. Here they become those of the visitor, whose zone only the browser knows.
const MOMENT = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "long", hour: "2-digit", minute: "2-digit" });
function localTime(time) {
  time.title = time.textContent;
  time.textContent = MOMENT.format(new Date(time.dateTime)).replace(" at ", ", ");
}

// An error of the server that nobody foresaw. Gradio hides it together with its progress, which this page does not show.
function tellTrouble() {
  const trouble = document.getElementById("trouble"), failed = document.querySelector("[data-testid=status-tracker] > .error");
  if (!trouble || trouble.hidden === !failed) return;
  trouble.hidden = !failed;
  if (failed) document.body.classList.remove("busy");
}

// --- Remedies

// The control that a button operates, if it is visible or would be with the fields around it open.
const FOLDED = "#advanced, #where";
function controlOf(button) {
  const control = document.querySelector(button.dataset.press);
  return (control?.closest(FOLDED) ?? control)?.checkVisibility() ? control : null;
}

// Show the button if its control is there, otherwise the words.
function offer(button) {
  button.hidden = !controlOf(button);
  if (button.nextElementSibling) button.nextElementSibling.hidden = !button.hidden;
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-press]"), control = button && controlOf(button);
  if (!control) return;
  if (!control.checkVisibility()) control.closest(FOLDED).querySelector("button").click();
  if (!control.checked) control.click();
  requestAnimationFrame(() => control.focus());
});

// --- Tabs, copying, signing in

function open(tab) {
  for (const other of tab.parentElement.children) {
    other.setAttribute("aria-selected", String(other === tab));
    other.tabIndex = other === tab ? 0 : -1;
    document.getElementById(other.getAttribute("aria-controls")).hidden = other !== tab;
  }
}

document.addEventListener("click", (event) => {
  const tab = event.target.closest(".tabs [role=tab]");
  if (tab) open(tab);
});

document.addEventListener("keydown", (event) => {
  const tab = event.target.closest?.(".tabs [role=tab]");
  const step = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
  if (!tab || !step || !tab[step]) return;
  open(tab[step]);
  tab[step].focus();
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest(".copyable button.copy");
  if (button) {
    const text = button.closest(".copyable").querySelector("pre").innerText.trimEnd();
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  }
});

// Gradio's own login button loses all but the first part of the address. The server first writes the choices into it.
document.addEventListener("click", (event) => {
  const start = event.target.closest("#start:not([disabled])");
  wantsStart = Boolean(start && signsIn(start));
  const button = wantsStart ? start : event.target.closest("#sign-in, [data-press='#sign-in']");
  if (!button) return;
  event.stopPropagation();
  event.preventDefault();
  door = button.textContent.trim().startsWith("Sign out") ? "logout" : "login/huggingface";
  const account = document.querySelector("#account p");
  if (account) tell(account, {});
  setTimeout(() => window.shardMyRepo.leave(""), account ? 5000 : 0); // without the choices rather than not at all
}, true);
