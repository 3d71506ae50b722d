// The dashboard. It asks for JSON every two seconds and draws it. Names, queries and errors are anybody's text: they go
// into the page as text nodes and attributes only, never as markup.
"use strict";

const EVERY = 2000;
const ELSEWHERE = 15000;
const SVG = "http://www.w3.org/2000/svg";
const SIGNS = { fresh: "●", refreshing: "↻", stale: "▲", failed: "✖", failing: "✖", suspended: "■", empty: "○", source: "▤" };
const WORDS = {
  fresh: "up to date", refreshing: "refreshing", stale: "stale", failed: "failed", failing: "failing",
  suspended: "suspended", empty: "not filled yet", source: "source",
};
const page = (id) => document.getElementById(id);
let token = sessionStorage.getItem("token");
let canSteer = false;
let last = null; // the overview that was shown last
let timer = null;
let turn = 0; // answers to what was asked before are not shown
let of = 0; // which of the service's logins, where it has several: the first number of the address
let logins = []; // all of them, by name
let elsewhere = 0; // when the others were looked at
const plans = new Map(); // what was explained, by table

// --- Building ---------------------------------------------------------------------------------------------------------

function build(space, name, attributes, children) {
  const found = space ? document.createElementNS(space, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) found.addEventListener(key.slice(2), value);
    else found.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat(3)) {
    if (child !== null && child !== undefined && child !== false) found.append(child.nodeType ? child : String(child));
  }
  return found;
}
const h = (name, attributes, ...children) => build(null, name, attributes, children);
const s = (name, attributes, ...children) => build(SVG, name, attributes, children);

function shown(...parts) {
  // Puts the parts into the page in place of what is there; what has the focus, or is open or scrolled, stays so.
  const main = page("main");
  const selected = getSelection();
  if (selected && !selected.isCollapsed && main.contains(selected.anchorNode) && main.dataset.at === location.hash) return;
  const focus = document.activeElement?.dataset?.key ?? document.activeElement?.getAttribute?.("data-key");
  const kept = new Map();
  if (main.dataset.at === location.hash) {
    for (const each of main.querySelectorAll("[data-key]")) {
      kept.set(each.getAttribute("data-key"), { open: each.open, left: each.scrollLeft, top: each.scrollTop });
    }
  }
  main.dataset.at = location.hash;
  main.replaceChildren(...parts.filter(Boolean));
  for (const each of main.querySelectorAll("[data-key]")) {
    const key = each.getAttribute("data-key");
    const was = kept.get(key);
    if (was) {
      if (each.tagName === "DETAILS") each.open = was.open;
      each.scrollLeft = was.left;
      each.scrollTop = was.top;
    }
    if (focus && key === focus) each.focus({ preventScroll: true });
  }
}

// --- Words and figures ------------------------------------------------------------------------------------------------

const number = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en"));
function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 9.95) return `${Math.max(seconds, 0).toFixed(1)} s`;
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  let left = Math.floor(seconds);
  const parts = [];
  for (const [unit, length] of units) {
    const amount = Math.floor(left / length);
    if (amount) parts.push(`${amount} ${unit}`);
    left %= length;
  }
  return parts.slice(0, 2).join(" ") || "0 s";
}
function millis(value) {
  if (value === null || value === undefined) return "–";
  return value < 1000 ? `${value < 10 ? value.toFixed(1) : Math.round(value)} ms` : span(value / 1000);
}
function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  let amount = bytes;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (amount < 1024) return `${unit === "B" ? amount : amount.toFixed(1)} ${unit}`;
    amount /= 1024;
  }
  return `${amount.toFixed(1)} TB`;
}
const time = (text) => (text ? new Date(text).toLocaleTimeString("en-GB") : "–");
const zoned = (text) => new Date(text).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short" });
const moment = (text) => (text ? new Date(text).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" }) : "–");
const since = (text, at) => (text ? (new Date(at) - new Date(text)) / 1000 : null);
const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;
const state = (name, extra) => h("span", { class: `state ${name}` }, h("span", { "aria-hidden": "true" }, SIGNS[name]), " ", WORDS[name], extra);
const told = (text) => text.split("`").map((part, i) => (i % 2 ? h("code", {}, part) : part)); // `commands` as such
const home = (login = of) => (login ? `#/${login}/` : "#/");
const link = (table) => `${home()}table/${table.pgt_id}`;
function route() {
  const found = location.hash.match(/^#\/(?:(\d+)\/)?(?:table\/(\d+))?$/);
  return { login: Number(found?.[1] || 0), table: found?.[2] === undefined ? null : Number(found[2]) };
}

// --- Asking -----------------------------------------------------------------------------------------------------------

async function ask(path, body, login = of) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const options = { headers, cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(15000) };
  if (body) Object.assign(options, { method: "POST", body: JSON.stringify(body) }), (headers["Content-Type"] = "application/json");
  const answer = await fetch(`api/${path}${path.includes("?") ? "&" : "?"}of=${login}`, options);
  const found = await answer.json();
  if (answer.status === 401) throw Object.assign(new Error(found.problem.message), { unknown: true });
  page("unlock").hidden = true; // the token is the right one, or none is needed
  if (!answer.ok) throw Object.assign(new Error(found.problem.message), { hint: found.problem.hint, code: found.problem.code });
  return found;
}

function trouble(problem, then) {
  const place = page("problem");
  place.hidden = !problem;
  if (!problem) return place.replaceChildren();
  const code = problem.code ? `${problem.code}: ` : "";
  place.replaceChildren(`✖ ${code}${problem.message}`, ...[problem.hint, then].filter(Boolean).map((text) => h("small", {}, told(text))));
}

function say(text) {
  page("said").replaceChildren(text || "");
}

function askForToken(wrong) {
  const dialog = page("ask");
  page("wrong").textContent = wrong || "";
  page("unlock").hidden = false;
  if (!dialog.open) dialog.showModal();
}

async function look() {
  clearTimeout(timer);
  const mine = ++turn;
  try {
    const { login, table } = route();
    if (login !== of) {
      of = login;
      last = null;
      plans.clear();
    }
    document.querySelector(".brand").setAttribute("href", home());
    if (table !== null) await lookAtTable(table, mine);
    else await lookAtAll(mine);
  } catch (error) {
    if (mine !== turn) return;
    if (error.unknown) {
      askForToken(token ? "That token is not the right one." : "");
      return; // the dialog goes on
    }
    const gone = error instanceof TypeError || error.name === "TimeoutError";
    trouble({ message: gone ? "The service does not answer." : error.message, code: error.code, hint: error.hint },
      `${gone ? "Is `pgtrickle run` still there? " : ""}${last ? `What is shown is as of ${zoned(last.at)}. ` : ""}This page tries again.`);
    service(null);
  }
  if (mine === turn) timer = setTimeout(look, document.hidden ? 5 * EVERY : EVERY);
}

function service(data) {
  const place = page("service");
  if (!data) return place.replaceChildren();
  const alive = data.leaders.filter((each) => each.alive);
  const told = alive.length
    ? `● service runs (${alive.map((each) => each.role_name).join(", ")})`
    : "▲ no service leads";
  place.replaceChildren(told);
}

function about(data, logins) {
  // Which database, or a choice of them.
  const place = page("database");
  if (place.contains(document.activeElement)) {
    document.activeElement.value = of;
    return;
  }
  const choice = logins.length > 1 && h("select", { "aria-label": "Database", onchange: (event) => {
    location.hash = home(Number(event.target.value));
  } }, logins.map((name, i) => h("option", { value: i, selected: i === of }, name)));
  place.replaceChildren(...[choice || data.database, ` · PostgreSQL ${data.server_version.split(" ")[0]}`]);
}

async function lookElsewhere() {
  // A page shows one database; that something is wrong in another one is told above it.
  if (logins.length < 2 || Date.now() - elsewhere < ELSEWHERE) return;
  elsewhere = Date.now();
  const told = await Promise.all(logins.map(async (name, login) => {
    if (login === of) return null;
    const mark = (words) => h("a", { href: home(login), "data-key": `login${login}` }, `✖ ${name}: ${words}`);
    try {
      const found = await ask("overview", null, login);
      if ("problem" in found) return mark(found.problem.message);
      const wrong = urgent(found).length;
      return wrong ? mark(`${plural(wrong, "thing")} to look at`) : null;
    } catch (error) {
      return mark(error.message);
    }
  }));
  const place = page("elsewhere");
  if (place.contains(document.activeElement)) return;
  place.replaceChildren(...told.filter(Boolean));
  place.hidden = !place.children.length;
}

// --- All tables -------------------------------------------------------------------------------------------------------

async function lookAtAll(mine) {
  const found = await ask("overview");
  if (mine !== turn) return;
  const data = "problem" in found ? found.data : found;
  canSteer = found.can_steer;
  if ("problem" in found) {
    trouble(found.problem, data ? `What is shown is ${span(found.age_s)} old.` : "Nothing could be read yet.");
    service(null);
  } else trouble(null);
  if (!data) return shown(h("p", { class: "quiet" }, "Nothing could be read from the database yet."));
  last = data;
  document.title = `${data.database} · pgtrickle`;
  about(data, found.logins);
  page("clock").replaceChildren(`as of ${zoned(data.at)}`);
  logins = found.logins;
  lookElsewhere();
  if (!("problem" in found)) service(data);
  if (!data.tables.length) {
    return shown(h("section", { class: "card" }, h("h2", {}, "There are no stream tables yet"),
      h("p", {}, "Make one: "), h("pre", {}, "pgtrickle create order_totals --query 'SELECT …'")));
  }
  shown(tiles(data), alarms(data), dag(data), list(data), sources(data), recent(data));
}

function tiles(data) {
  const count = {};
  for (const each of data.tables) count[each.state] = (count[each.state] || 0) + 1;
  const scheduled = data.tables.filter((each) => each.staleness_s !== null && each.effective_mode !== "IMMEDIATE" && each.status !== "SUSPENDED");
  const oldest = scheduled.sort((a, b) => b.staleness_s - a.staleness_s)[0];
  const waiting = Object.values(data.waiting).reduce((sum, each) => sum + each, 0);
  const ms = data.tables.flatMap((each) => each.times?.ms || []).filter((each) => each !== null).sort((a, b) => a - b);
  const stored = new Set(data.tables.map((each) => each.pgt_relid));
  const captured = data.captured.filter((each) => !stored.has(each.source_relid)); // as below: stream tables never are
  const wal = captured.filter((each) => each.cdc_mode === "WAL").length;
  const states = Object.keys(WORDS).filter((name) => count[name]).map((name) => `${count[name]} ${WORDS[name]}`);
  const tile = (value, ...words) => h("div", { class: "tile" }, h("b", {}, value), h("span", {}, ...words));
  return h("div", { class: "tiles" },
    tile(number(data.tables.length), `stream table${data.tables.length === 1 ? "" : "s"}: ${states.join(", ")}`),
    tile(oldest ? span(oldest.staleness_s) : "–", oldest ? `oldest data: ${oldest.name}` : "no data with a schedule"),
    tile(ms.length ? millis(ms[Math.floor(ms.length / 2)]) : "–", "median refresh"),
    tile(number(waiting), "changes in buffers"),
    tile(data.slot ? size(data.slot.lag_bytes) : "–", data.slot ? `slot lag, decoder ${data.slot.decoder_status.toLowerCase()}` : "no slot: captured by triggers"),
    tile(`${wal} / ${captured.length}`, "sources captured from the WAL"));
}

function urgent(data) {
  // What is wrong, the worst first: severity, name, text, what to do.
  const found = [];
  const failed = data.tables.filter((each) => each.last_error);
  const isOf = (check, table) => check.check_name === "stream_tables" && check.detail.startsWith(`${table.quoted} is`);
  for (const each of failed) {
    const cure = data.checks.find((check) => isOf(check, each))?.hint || each.error_hint;
    const severity = each.status === "ACTIVE" ? "WARN" : "ERROR";
    found.push([severity, h("a", { href: link(each), "data-key": `a${each.pgt_id}` }, each.name), `: ${each.last_error}`, cure]);
  }
  for (const each of data.checks) {
    if (each.severity === "OK" || failed.some((table) => isOf(each, table))) continue;
    found.push([each.severity, each.check_name.replaceAll("_", " "), `: ${each.detail}`, each.hint]);
  }
  const rank = ["ERROR", "WARN"];
  return found.filter((each) => rank.includes(each[0])).sort((a, b) => rank.indexOf(a[0]) - rank.indexOf(b[0]));
}

function alarms(data) {
  const wrong = urgent(data);
  if (!wrong.length) return null;
  return h("section", { class: "card", "aria-label": "What is wrong" }, h("h2", {}, "What is wrong, and what to do"),
    wrong.map(([severity, name, text, hint], i) => h("div", { class: `alarm ${severity}` },
      h("b", {}, severity === "ERROR" ? "✖ error" : "▲ warning"),
      h("p", {}, name, text), hint && wrong[i + 1]?.[3] !== hint && h("p", { class: "hint" }, told(hint)))));
}

function dag(data) {
  const { width, height, node_width: w, node_height: tall, nodes, lines } = data.graph;
  const tables = new Map(data.tables.map((each) => [each.pgt_id, each]));
  const captured = new Map(data.captured.map((each) => [each.source_relid, each]));
  const drawing = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Which stream table reads what" },
    s("defs", {}, s("marker", { id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse" },
      s("path", { d: "M0 0 8 4 0 8z", class: "tip" }))),
    lines.map((line) => s("path", { class: line.back ? "edge back" : "edge", d: curve(line.points), "marker-end": "url(#tip)" })),
    nodes.map((node) => {
      const table = tables.get(node.pgt_id);
      const name = table ? table.name : node.name;
      const kind = table ? table.state : "source";
      const word = table ? WORDS[kind] : capture(captured.get(node.relid), node.type);
      const figure = table ? age(table) : "";
      const label = `${name}: ${word}${figure ? `, ${figure}` : ""}`;
      const inside = s("g", { class: kind, transform: `translate(${node.x} ${node.y})` },
        s("title", {}, label),
        s("rect", { class: "box", width: w, height: tall, rx: table ? 8 : 2 }),
        s("path", { class: "soft", d: `M2 ${tall / 2}h${w - 4}v${tall / 2 - 8}q0 6-6 6h-${w - 16}q-6 0-6-6z` }),
        s("text", { class: "title", x: 11, y: 19 }, short(unqualified(name), 25)),
        s("text", { class: "sign", x: 11, y: tall - 10 }, SIGNS[kind]),
        s("text", { class: "word", x: 28, y: tall - 10 }, word),
        s("text", { class: "quiet", x: w - 10, y: tall - 10, "text-anchor": "end" }, figure));
      return table ? s("a", { href: link(table), "aria-label": label, "data-key": `n${node.pgt_id}` }, inside) : inside;
    }));
  const there = Object.keys(WORDS).filter((name) => name === "source" || data.tables.some((each) => each.state === name));
  return h("section", { class: "card", "aria-label": "Sources and stream tables" }, h("h2", {}, "Who reads what"),
    h("div", { class: "dag", "data-key": "dag", tabindex: "-1" }, drawing),
    h("div", { class: "legend" }, there.map((name) => state(name))));
}

const unqualified = (name) => (name.startsWith("public.") ? name.slice(7) : name);
const age = (table) => (table.effective_mode === "IMMEDIATE" ? "immediate" : table.staleness_s === null ? "" : `${span(table.staleness_s)} old`);
const MODES = { TRIGGER: "triggers", TRANSITIONING: "triggers → WAL", WAL: "WAL" };
const COMPARED = ["MATERIALIZED_VIEW", "FOREIGN_TABLE"];
function capture(found, type) {
  if (type === "GONE") return "dropped";
  if (!found) return type === "STREAM_TABLE" ? "stream table" : "read in full";
  return COMPARED.includes(type) ? "comparing" : MODES[found.cdc_mode];
}

function curve(points) {
  // Straight where two points are of one height, else bent so that it leaves and comes in level.
  let way = `M${points[0][0]} ${points[0][1]}`;
  for (let i = 1; i < points.length; i++) {
    const [x0, y0] = points[i - 1];
    const [x1, y1] = points[i];
    const half = (x1 - x0) / 2;
    way += y0 === y1 ? `L${x1} ${y1}` : `C${x0 + half} ${y0} ${x1 - half} ${y1} ${x1} ${y1}`;
  }
  return way;
}

function list(data) {
  const rows = data.tables.map((each) => h("tr", {},
    cell("table", { class: "name" }, h("a", { href: link(each), "data-key": `t${each.pgt_id}` }, named(each.name))),
    cell("state", {}, state(each.state)),
    cell("mode", {}, mode(each)),
    cell("data", { class: "when" }, freshness(each)),
    cell("refresh times", {}, sparkline(each.times)),
    cell("last", { class: "num" }, millis(each.last_ms)),
    cell("rows", { class: "num" }, each.last_action && each.last_action !== "NO_DATA" ? `+${number(each.rows_inserted)} −${number(each.rows_deleted)}` : "–"),
    cell("last action", { class: "why" }, lastAction(each))));
  return h("section", { class: "card" }, h("div", { class: "scroll", "data-key": "list" }, h("table", { class: "cards" },
    h("caption", {}, "Stream tables"), heads(["table", "state", "mode", "staleness / schedule", "refresh times", ">last", ">rows", "last action, and why"]),
    h("tbody", {}, rows))));
}

const cell = (label, attributes, ...children) => h("td", { "data-label": label, ...attributes }, h("div", {}, ...children));
const named = (text) => unqualified(text).split(/(?<=[_.])/).flatMap((part, i) => (i ? [h("wbr"), part] : [part]));
const heads = (names) => h("thead", {}, h("tr", {}, names.map((name) =>
  h("th", { scope: "col", class: name.startsWith(">") ? "num" : null }, name.replace(">", "")))));
const mode = (table) => (table.refresh_mode === table.effective_mode ? table.refresh_mode : `${table.refresh_mode} (${table.effective_mode})`);
function lastAction(each) {
  if (each.running_since) return `refreshing${each.running_rows ? `, ${number(each.running_rows)} rows so far` : ""}`;
  return each.last_action || each.last_status ? `${each.last_action || each.last_status}: ${short(each.last_error || each.last_reason || "", 160)}` : "never refreshed";
}

function freshness(table) {
  // How old the data is, as a part of what the schedule allows.
  if (table.effective_mode === "IMMEDIATE") return "kept by writers";
  const text = `${span(table.staleness_s)} / ${table.schedule || "calculated"}`;
  if (table.staleness_s === null || !table.period_s) return text;
  const part = Math.min(table.staleness_s / (2 * table.period_s), 1);
  return [text, s("svg", { width: 120, height: 8, role: "img", "aria-label": `${Math.round(part * 200)} % of its schedule` },
    s("rect", { class: "track", y: 1, width: 120, height: 6, rx: 3 }),
    s("rect", { class: table.staleness_s > 2 * table.period_s + 10 ? "level stale" : "level", y: 1, width: Math.max(120 * part, 2), height: 6, rx: 3 }),
    s("line", { class: "goal", x1: 60, x2: 60, y1: 0, y2: 8 }))];
}

const kindOf = (action) => (["FULL", "REINITIALIZE", "FAILED", "DIFFERENTIAL"].includes(action) ? action : "other");
function sparkline(times) {
  if (!times?.ms) return h("span", { class: "quiet" }, "none yet");
  const most = tallest(times.ms);
  const wide = 4;
  const sum = times.ms.map((ms, i) => `${times.actions[i]} ${millis(ms)}`);
  return s("svg", { width: 32 * wide, height: 26, role: "img", "aria-label": `Last refreshes: ${sum.slice(-3).join(", ")}` },
    times.ms.map((ms, i) => {
      const tall = Math.min(Math.max((22 * ms) / most, 1.5), 25);
      return s("rect", { class: `bar ${kindOf(times.actions[i])}`, x: (32 - times.ms.length + i) * wide, y: 25 - tall, width: wide - 1, height: tall }, s("title", {}, sum[i]));
    }));
}

function sources(data) {
  const captured = new Map(data.captured.map((each) => [each.source_relid, each]));
  const others = new Map();
  for (const edge of data.edges) if (!captured.has(edge.source_relid) && edge.source_type !== "STREAM_TABLE") others.set(edge.source_relid, edge);
  const stored = new Set(data.tables.map((each) => each.pgt_relid));
  const types = new Map(data.edges.map((edge) => [edge.source_relid, edge.source_type]));
  const hint = (each) => each.hint && !COMPARED.includes(types.get(each.source_relid)) && h("div", { class: "hint" }, told(each.hint.replace(/ALTER [^;]*;/g, "`$&`")));
  const rows = data.captured.filter((each) => !stored.has(each.source_relid)).map((each) => h("tr", {},
    cell("source", { class: "name" }, named(each.source_table)),
    cell("captured by", {}, capture(each, types.get(each.source_relid)),
      each.trigger_active || each.cdc_mode === "WAL" || types.get(each.source_relid) === "GONE" ? null : h("div", { class: "state failed" }, "✖ triggers are off")),
    cell("slot lag", { class: "num" }, size(each.slot_lag_bytes)),
    cell("waiting", { class: "num" }, number(data.waiting[each.source_relid] || 0)),
    cell("why", { class: each.reason ? "why" : "why none" }, each.reason, hint(each))));
  for (const edge of others.values()) {
    rows.push(h("tr", {}, cell("source", { class: "name" }, named(edge.source)), cell("captured by", {}, capture(null, edge.source_type)),
      cell("slot lag", { class: "num none" }, "–"), cell("waiting", { class: "num none" }, "–"),
      cell("why", { class: "why" }, "its readers are computed in full")));
  }
  return h("section", { class: "card" }, h("div", { class: "scroll", "data-key": "sources" }, h("table", { class: "cards" }, h("caption", {}, "Sources"),
    heads(["source", "captured by", ">slot lag", ">changes waiting", "why not from the WAL"]), h("tbody", {}, rows))),
    data.captured.some((each) => stored.has(each.source_relid)) && h("p", { class: "small quiet" }, "Stream tables that others read are captured by triggers, always."));
}

function recent(data) {
  const rows = data.recent.slice(0, 14).map((each) => h("tr", {},
    cell("at", { class: "when" }, time(each.started_at)),
    cell("table", { class: "name" }, h("a", { href: link(each), "data-key": `r${each.refresh_id}` }, named(each.name))),
    cell("action", {}, outcome(each)),
    cell("took", { class: "num" }, millis(each.duration_ms)),
    cell("why", { class: "why" }, because(each))));
  return h("section", { class: "card" }, h("div", { class: "scroll", "data-key": "recent" }, h("table", { class: "cards" }, h("caption", {}, "Last refreshes that had something to do"),
    heads(["at", "table", "action", ">took", "why"]), h("tbody", {}, rows.length ? rows : h("tr", {}, h("td", { colspan: 5, class: "quiet" }, "none yet"))))));
}

const outcome = (each) => {
  if (each.status === "FAILED") return h("span", { class: "state failed" }, "✖ failed");
  if (each.status === "RUNNING") return state("refreshing");
  if (each.status === "SKIPPED") return "skipped";
  return [each.action, each.action === "NO_DATA" ? null : h("div", { class: "small quiet" }, `+${number(each.rows_inserted)} −${number(each.rows_deleted)}`)];
};
const because = (each) => (each.error ? [`${each.error_code || ""} ${short(each.error, 400)}`, each.hint && h("div", { class: "hint" }, told(each.hint))] : short(each.reason || "", 300));

// --- One table --------------------------------------------------------------------------------------------------------

async function lookAtTable(id, mine) {
  const found = await ask(`table?id=${id}`);
  if (last === null) {
    const all = await ask("overview");
    if (!("problem" in all)) {
      last = all;
      canSteer = all.can_steer;
      logins = all.logins;
      about(all, logins);
      service(all);
    }
  }
  if (mine !== turn) return;
  trouble(null);
  const { table, facts, history, at } = found;
  document.title = `${table.name} · pgtrickle`;
  page("clock").replaceChildren(`as of ${zoned(at)}`);
  lookElsewhere();
  const fact = (name, value) => value !== null && value !== undefined && h("div", {}, h("dt", {}, name), h("dd", {}, value));
  shown(
    h("p", { class: "small" }, h("a", { href: home(), "data-key": "up" }, "← all stream tables")),
    h("div", { class: "head" }, h("h1", {}, table.name), state(table.state), steering(table)),
    table.last_error && h("section", { class: "card", "aria-label": "Error" }, h("div", { class: `alarm ${table.status === "ACTIVE" ? "WARN" : "ERROR"}` },
      h("b", {}, "✖ error"), h("p", {}, table.last_error), table.error_hint && h("p", { class: "hint" }, told(table.error_hint)),
      table.status === "SUSPENDED" && h("p", { class: "hint" }, told(`It is suspended until it is resumed, here or by \`pgtrickle resume ${table.name}\`.`)))),
    h("section", { class: "card", "aria-label": "Facts" }, h("dl", { class: "facts" },
      fact("staleness", table.effective_mode === "IMMEDIATE" ? "none: kept by writers" : span(table.staleness_s)), fact("schedule", table.schedule || "calculated"),
      fact("mode", mode(table)), fact("next run", table.next_run && (since(table.next_run, at) > 0 ? "due now" : `in ${span(-since(table.next_run, at))}`)),
      fact("rows", table.rows === null ? null : `about ${number(table.rows)}`), fact("size", table.bytes === null ? null : size(table.bytes)),
      fact("owner", table.owner), fact("read by", facts["read by"]?.split(", ").flatMap((name, i) => [i ? ", " : "", ...named(name)])), fact("in a circle with", facts.circle), fact("state kept", facts.state), fact("why this mode", table.mode_reason),
      fact("will be computed again", table.needs_reinit ? table.reinit_reason || "yes" : null), fact("failures in a row", table.consecutive_errors || null))),
    h("div", { class: "two" }, timesChart(history), stalenessChart(history, table, at)),
    h("div", { class: "two" },
      h("div", { class: "stack" }, h("section", { class: "card" }, h("h2", {}, "Query"),
        h("pre", { class: "wrap", "data-key": "query", tabindex: "0" }, found.query.trim())), readFrom(found)),
      costs(found)),
    explained(id, facts),
    pastRefreshes(history));
}

function steering(table) {
  if (!canSteer) return h("span", { class: "does small quiet" }, "read-only");
  const button = (what, words, more) => h("button", { type: "button", "data-key": `do-${what}`, ...more, onclick: (event) => steer(what, table, event.target) }, words);
  return h("div", { class: "does" }, button("refresh", "Refresh now"), button("full", "Compute again in full"),
    table.status === "ACTIVE" ? button("suspend", "Suspend") : button("resume", "Resume"));
}

async function steer(what, table, button) {
  if (what === "full" && !confirm(`Compute all of ${table.name} again?`)) return;
  button.disabled = true;
  try {
    const { request } = await ask(what, { id: table.pgt_id });
    say(`Asked the service: request ${request}.`);
    for (let tries = 0; tries < 600; tries++) {
      const found = await ask(`request?id=${request}`);
      if (found.state === "FAILED") throw Object.assign(new Error(found.error), { hint: found.hint });
      if (found.state === "DONE") {
        const result = found.result || {};
        say(result.action ? `${table.name}: ${result.action}, ${result.reason}` : `${table.name}: done`);
        break;
      }
      say(`Request ${request}: ${found.waits || (found.state === "PENDING" ? "waits for the service" : "the service is at it")} …`);
      await new Promise((done) => setTimeout(done, 400));
    }
    setTimeout(() => say(""), 8000);
  } catch (error) {
    if (error.unknown) askForToken("That token is not the right one.");
    else say(`✖ ${error.message}${error.hint ? ` → ${error.hint}` : ""}`);
  }
  look();
}

function tallest(values) {
  // The height of a chart: one that towers over the others, such as the first fill, is cut off.
  const sorted = values.filter((each) => each !== null).sort((a, b) => a - b);
  const most = Math.max(...sorted, 1);
  return sorted.length < 5 ? most : Math.min(most, 5 * sorted[Math.floor(sorted.length / 2)] + 1);
}
const scale = (seconds) => (seconds < 10 ? `${+seconds.toFixed(1)} s` : seconds < 180 ? `${Math.round(seconds)} s` : seconds < 10800 ? `${Math.round(seconds / 60)} min` : seconds < 259200 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`);

const CHART = { get wide() { return innerWidth < 740 ? 340 : 560; }, tall: 170, left: 60, right: 8, top: 10, bottom: 24 };
function chart(title, most, unit, label, keys, ...parts) {
  const { wide, tall, left, right, top, bottom } = CHART;
  const lines = [0, 0.5, 1].map((part) => {
    const y = tall - bottom - part * (tall - top - bottom);
    return [s("line", { class: "axis", x1: left, x2: wide - right, y1: y, y2: y }), s("text", { class: "quiet", x: left - 6, y: y + 4, "text-anchor": "end" }, unit(part * most))];
  });
  return h("section", { class: "card" }, h("h2", {}, title),
    s("svg", { class: "chart", viewBox: `0 0 ${wide} ${tall}`, role: "img", "aria-label": label }, lines, parts), h("div", {}, keys));
}
const key = (name, words) => h("span", { class: "key" }, h("i", { class: name }), words);

function timesChart(history) {
  const past = history.filter((each) => each.duration_ms !== null && each.action !== "NO_DATA" && ["COMPLETED", "FAILED"].includes(each.status)).slice(0, 80).reverse();
  const most = tallest(past.map((each) => each.duration_ms));
  const { wide, tall, left, right, top, bottom } = CHART;
  const step = Math.min((wide - left - right) / Math.max(past.length, 1), 22);
  const what = (each) => (each.status === "FAILED" ? "FAILED" : kindOf(each.action));
  const bars = past.map((each, i) => {
    const cut = each.duration_ms > most;
    const high = Math.max(((tall - top - bottom) * Math.min(each.duration_ms, most * 1.04)) / most, 1.5);
    const title = s("title", {}, `${moment(each.started_at)}: ${each.action || each.status}, ${millis(each.duration_ms)}`);
    const place = { x: left + i * step, width: Math.max(step - 1.5, 1) };
    return [s("rect", { class: `bar ${what(each)}`, ...place, y: tall - bottom - high, height: high }, title),
      cut && s("path", { class: "cut", d: `M${place.x - 1} ${top + 12}l${place.width + 2} -5` }),
      cut && s("text", { class: "quiet", x: place.x + place.width + 3, y: top + 6 }, millis(each.duration_ms))];
  });
  const ends = past.length ? [s("text", { class: "quiet", x: left, y: tall - 6 }, time(past[0].started_at)),
    past.length > 12 && s("text", { class: "quiet", x: left + past.length * step, y: tall - 6, "text-anchor": "end" }, time(past[past.length - 1].started_at))] : null;
  const label = past.length ? `Times of the last ${past.length} refreshes, at most ${millis(most)}` : "No refreshes yet";
  return chart("Refresh times", most, (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : scale(ms / 1000)), label, [key("DIFFERENTIAL", "from changes"), key("FULL", "in full"), key("FAILED", "failed")], bars, ends);
}

function stalenessChart(history, table, at) {
  // Data ages from the moment that it shows; each refresh makes it young again. While nothing changes, looks follow each
  // other by the schedule, and only the first and the last of them are on record.
  const past = history.filter((each) => each.status === "COMPLETED" && each.data_timestamp).slice(0, 80).reverse();
  const points = [];
  let known = null;
  for (const each of past) {
    const end = new Date(each.finished_at) / 1000;
    const data = new Date(each.data_timestamp) / 1000;
    const start = each.action === "NO_DATA" ? new Date(each.started_at) / 1000 : end;
    if (known !== null) points.push([start, start - known]);
    if (each.action === "NO_DATA" && end - start > 1) points.push([start, Math.min(table.period_s || 0, start - (known ?? start))], [end, table.period_s || end - data]);
    points.push([end, end - data]);
    known = data;
  }
  const now = new Date(at) / 1000;
  if (known !== null) points.push([now, now - known]);
  const { wide, tall, left, right, top, bottom } = CHART;
  const first = points.length ? points[0][0] : now - 1;
  const most = Math.max(tallest(points.map((each) => each[1])), (table.period_s || 0) * 1.15, 1);
  const x = (when) => left + ((wide - left - right) * (when - first)) / Math.max(now - first, 1e-3);
  const y = (seconds) => tall - bottom - ((tall - top - bottom) * Math.min(Math.max(seconds, 0), most * 1.04)) / most;
  const way = points.map(([when, seconds], i) => `${i ? "L" : "M"}${x(when).toFixed(1)} ${y(seconds).toFixed(1)}`).join("");
  const parts = points.length ? [
    s("path", { class: "area", d: `${way}L${x(now)} ${y(0)}L${x(first)} ${y(0)}z` }), s("path", { class: "curve", d: way }),
    table.period_s && s("line", { class: "goal", x1: left, x2: wide - right, y1: y(table.period_s), y2: y(table.period_s) }),
    s("text", { class: "quiet", x: left, y: tall - 6 }, time(first * 1000)), s("text", { class: "quiet", x: wide - right, y: tall - 6, "text-anchor": "end" }, "now")] : [];
  return chart("Staleness", most, scale, points.length ? `Age of the data, now ${span(table.staleness_s)}, at most ${span(most)}` : "No data yet",
    [h("span", { class: "key" }, `how old the data was${table.period_s ? "; dashed: the schedule" : ""}`)], parts);
}

function costs(found) {
  const { table, history } = found;
  const counts = Object.values(found.waiting);
  const changes = counts.includes(null) ? null : counts.reduce((sum, each) => sum + each, 0);
  const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
  const chosen = history.find((each) => each.expected);
  const real = history.filter((each) => each.status === "COMPLETED" && each.action !== "NO_DATA").slice(0, 5);
  const done = history.find((each) => each.status === "COMPLETED" && Object.keys(each.phases || {}).length);
  const phases = Object.entries(done?.phases || {});
  const total = phases.reduce((sum, each) => sum + each[1], 0) || 1;
  return h("section", { class: "card" }, h("h2", {}, "Costs, expected and real"),
    h("dl", { class: "facts" },
      fact("changes that wait for it", changes === null ? "many, or not known" : number(changes)),
      Object.entries(chosen?.expected || {}).map(([way, ms]) => fact(`expected of ${way}`, millis(ms)))),
    real.length > 0 && [h("h3", {}, "What the last ones really cost"), h("table", { class: "tight costs" }, heads(["action", ">changes", ">expected", ">took", ">server CPU"]), h("tbody", {}, real.map((each) => h("tr", {},
      h("td", {}, each.way || each.action), h("td", { class: "num" }, each.action === "DIFFERENTIAL" ? number(each.changes_read) : "–"),
      h("td", { class: "num" }, each.expected?.[each.way] === undefined ? "–" : millis(each.expected[each.way])), h("td", { class: "num" }, millis(each.took_ms ?? each.duration_ms)),
      h("td", { class: "num", title: "that PostgreSQL spent on it, without parallel workers" }, each.server_cpu_ms === null ? "–" : millis(each.server_cpu_ms))))))],
    phases.length > 0 && [h("h3", {}, `Where the time went (${table.last_at ? time(done.finished_at) : ""})`),
      h("table", { class: "tight" }, h("tbody", {}, phases.map(([name, ms]) => h("tr", {}, h("td", {}, name === "spark" ? "evaluate" : name.replaceAll("_", " ")), h("td", { class: "num" }, millis(ms)),
        h("td", {}, s("svg", { width: 100, height: 10, "aria-hidden": "true" }, s("rect", { class: "bar", y: 1, width: Math.max((100 * ms) / total, 1), height: 8, rx: 2 })))))))]);
}

function readFrom(found) {
  const captured = new Map((last?.captured || []).map((each) => [each.source_relid, each]));
  const rows = found.sources.map((each) => {
    const how = captured.get(each.source_relid);
    return h("tr", {}, cell("source", { class: "name" }, named(each.source)), cell("columns", { class: "why" }, each.columns_used.join(", ") || "–"),
      cell("captured by", {}, each.cdc_mode ? MODES[each.cdc_mode] : "read in full"),
      cell("slot lag", { class: "num" }, size(how?.slot_lag_bytes)), cell("waiting", { class: "num" }, number(found.waiting[each.source_relid])));
  });
  return h("section", { class: "card" }, h("div", { class: "scroll", "data-key": "reads" }, h("table", { class: "cards" }, h("caption", {}, "What it reads"),
    heads(["source", "columns used", "captured by", ">slot lag", ">waiting"]), h("tbody", {}, rows))));
}

function explained(id, facts) {
  const known = plans.get(id);
  const button = h("button", { type: "button", "data-key": "explain", onclick: async (event) => {
    event.target.disabled = true;
    try {
      plans.set(id, (await ask(`explain?id=${id}`)).text);
    } catch (error) {
      plans.set(id, `✖ ${error.message}${error.hint ? `\n→ ${error.hint}` : ""}`);
    }
    look();
  } }, known ? "Again" : "Show reads and costs of the next refresh");
  return h("section", { class: "card" }, h("h2", {}, "How it is maintained"),
    known ? h("pre", { "data-key": "plan", tabindex: "0" }, known) : [
      facts.operators && [h("h3", {}, "operators"), h("pre", { "data-key": "operators", tabindex: "0" }, facts.operators)],
      facts["delta plan"] && h("details", { "data-key": "delta" }, h("summary", {}, "delta plan"), h("pre", { tabindex: "0", "data-key": "deltaplan" }, facts["delta plan"])),
      !facts.operators && h("p", {}, facts["effective mode"])],
    h("p", {}, button));
}

function pastRefreshes(history) {
  const rows = history.slice(0, 30).map((each) => h("tr", {},
    cell("started", { class: "when" }, moment(each.started_at)), cell("by", {}, each.initiated_by.toLowerCase()), cell("action", {}, outcome(each)),
    cell("changes", { class: "num" }, number(each.changes_read)), cell("took", { class: "num" }, millis(each.duration_ms)), cell("why", { class: "why" }, because(each))));
  return h("section", { class: "card" }, h("div", { class: "scroll", "data-key": "past" }, h("table", { class: "cards" }, h("caption", {}, "History"),
    heads(["started", "by", "action", ">changes", ">took", "why"]), h("tbody", {}, rows))));
}

// --- Beginning --------------------------------------------------------------------------------------------------------

page("unlock").addEventListener("click", () => askForToken(""));
page("cancel").addEventListener("click", () => page("ask").close());
page("ask").querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  token = page("token").value.trim();
  page("token").value = "";
  sessionStorage.setItem("token", token);
  page("ask").close();
  look();
});
addEventListener("hashchange", () => {
  say("");
  if (route().login !== of) elsewhere = 0;
  look();
  page("main").focus({ preventScroll: true });
  scrollTo(0, 0);
});
document.addEventListener("visibilitychange", () => document.hidden || look());
look();
