"use strict";
(() => {
  const DATA = JSON.parse(document.getElementById("data").textContent);
  const HUES = ["#2a6fbb", "#d1742c", "#2a9d5c", "#8b5fbf", "#c9a227", "#b0413e", "#3f8f88", "#8c6d5a",
    "#d46a9f", "#5c7fd6", "#7a9a2f", "#a35c1e", "#4f9bc4", "#b38bd0", "#6b7686"];
  const hue = (n) => HUES[n % HUES.length];
  const root = document.documentElement;
  const ink = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const number = (x) => Math.round(x).toLocaleString("en-US");
  const redraws = [];

  function duration(seconds) {
    for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]])
      if (Math.abs(seconds) >= size || unit === "ns") return `${+(seconds / size).toPrecision(4)} ${unit}`;
  }

  function save(name, lines) {
    const cell = (text) => /[",\n]/.test(text) ? `"${String(text).replaceAll('"', '""')}"` : text;
    const text = lines.map((row) => row.map((x) => cell(String(x))).join(",")).join("\n") + "\n";
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.download = name + ".csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  // ---- tables: sorted by their headings, saved as they stand

  function keyed(cell) {
    const given = cell.dataset.v;
    return given === undefined ? cell.textContent : +given;
  }
  for (const table of document.querySelectorAll("table")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, at) => head.querySelector("button").addEventListener("click", () => {
      const numeric = [...table.tBodies[0].rows].some((row) => row.cells[at].dataset.v !== undefined);
      const now = head.getAttribute("aria-sort");
      const up = now ? now === "descending" : !numeric; // numbers begin with the largest
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = [...table.tBodies[0].rows].map((row) => [keyed(row.cells[at]), row]);
      rows.sort(([a], [b]) => {
        const text = typeof a === "string", other = typeof b === "string";
        if (text !== other) return text ? 1 : -1; // cells without a number come last
        return (text ? a.localeCompare(b, "en", { numeric: true }) : a - b) * (up ? 1 : -1);
      });
      table.tBodies[0].append(...rows.map(([, row]) => row));
    }));
  }
  for (const button of document.querySelectorAll("[data-csv]")) button.addEventListener("click", () => {
    const table = document.getElementById(button.dataset.csv);
    save(table.id, [[...table.tHead.rows[0].cells].map((c) => c.textContent),
      ...[...table.tBodies[0].rows].map((row) => [...row.cells].map(keyed))]);
  });

  // ---- canvases

  function surface(canvas, height) {
    const ratio = window.devicePixelRatio || 1, width = canvas.parentElement.clientWidth;
    canvas.style.height = height + "px";
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const draw = canvas.getContext("2d");
    draw.setTransform(ratio, 0, 0, ratio, 0, 0);
    draw.font = "12px system-ui, 'DejaVu Sans', sans-serif";
    draw.textBaseline = "middle";
    return [draw, width];
  }

  function legend(figure, names) {
    const list = document.createElement("ul");
    list.className = "legend";
    for (const [name, colour] of names) {
      const item = document.createElement("li"), spot = document.createElement("i");
      spot.style.background = colour;
      item.append(spot, name);
      list.append(item);
    }
    figure.append(list);
  }

  function ticks(from, to, room) {
    const rough = (to - from) / Math.max(2, Math.floor(room / 95));
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((m) => m * power >= rough);
    const found = [];
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
    return found;
  }

  /** A view of a stretch of time that wheel, fingers, buttons and keys move. */
  class View {
    constructor(figure, total, least, told) {
      Object.assign(this, { figure, total, least, told, from: 0, to: total });
      this.canvas = figure.querySelector("canvas");
      this.readout = figure.querySelector(".readout");
      const act = (what, typed) => this.act(what, typed);
      figure.querySelectorAll("[data-do]").forEach((b) => b.addEventListener("click", () => act(b.dataset.do)));
      this.canvas.addEventListener("wheel", (event) => {
        if (!event.ctrlKey && !event.shiftKey && document.activeElement !== this.canvas) return; // the page scrolls
        event.preventDefault();
        if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))
          return this.move((event.deltaX || event.deltaY) / 800);
        this.zoom(2 ** (event.deltaY / 250), this.time(event.offsetX));
      }, { passive: false });
      const keys = { "+": "in", "=": "in", "-": "out", "_": "out", ArrowLeft: "left", ArrowRight: "right", Home: "all", "0": "all" };
      this.canvas.addEventListener("keydown", (event) => {
        const what = keys[event.key];
        if (!what || event.ctrlKey || event.metaKey || event.altKey) return;
        event.preventDefault();
        act(what, true);
      });
      let held = null;
      this.canvas.addEventListener("pointerdown", (event) => {
        held = [event.offsetX, this.from];
        this.canvas.setPointerCapture(event.pointerId);
      });
      this.canvas.addEventListener("pointermove", (event) => {
        if (held) {
          const span = this.to - this.from;
          this.show(held[1] - (event.offsetX - held[0]) / this.room * span, span);
        } else this.point(this.time(event.offsetX), event.offsetY);
      });
      const free = () => { held = null; };
      this.canvas.addEventListener("pointerup", free);
      this.canvas.addEventListener("pointercancel", free);
      this.canvas.addEventListener("dblclick", (event) => this.zoom(0.2, this.time(event.offsetX)));
      redraws.push(() => this.draw());
    }
    get left() { return Math.max(this.width < 560 ? 52 : 84, this.named || 0); }
    fit(draw, names) { this.named = Math.ceil(Math.max(...names.map((name) => draw.measureText(name).width))) + 12; }
    get room() { return this.width - this.left - 8; }
    x(t) { return this.left + (t - this.from) / (this.to - this.from) * this.room; }
    time(x) { return this.from + (x - this.left) / this.room * (this.to - this.from); }
    act(what) {
      if (what === "csv") return this.csv();
      if (what === "all") return this.show(0, this.total);
      if (what === "in" || what === "out") return this.zoom(what === "in" ? 0.4 : 2.5, (this.from + this.to) / 2);
      if (what === "left" || what === "right") return this.move(what === "left" ? -0.25 : 0.25);
    }
    zoom(factor, about) {
      const span = Math.min(this.total, Math.max(this.least, (this.to - this.from) * factor));
      this.show(about - (about - this.from) * span / (this.to - this.from), span);
    }
    move(share) { this.show(this.from + share * (this.to - this.from), this.to - this.from); }
    show(from, span) {
      this.from = Math.max(0, Math.min(from, this.total - span));
      this.to = this.from + span;
      if (this.waiting) return;
      this.waiting = requestAnimationFrame(() => { this.waiting = 0; this.draw(); });
    }
    axis(draw, y) {
      draw.fillStyle = ink("--soft");
      draw.strokeStyle = ink("--line");
      draw.textAlign = "center";
      let free = 0;
      for (const at of ticks(this.from, this.to, this.room)) {
        const x = this.x(at), text = this.told(at), half = draw.measureText(text).width / 2;
        draw.beginPath();
        draw.moveTo(x, 4);
        draw.lineTo(x, y - 9);
        draw.stroke();
        const middle = Math.min(Math.max(x, this.left + half), this.width - half);
        if (middle - half < free) continue;
        draw.fillText(text, middle, y);
        free = middle + half + 8;
      }
    }
    lane(draw, text, y) {
      draw.textAlign = "right";
      draw.fillStyle = ink("--ink");
      draw.fillText(text, this.left - 8, y);
    }
    block(draw, from, to, y, height, colour, text) {
      const x0 = Math.max(this.x(from), this.left), x1 = Math.min(this.x(to), this.left + this.room);
      if (x1 <= x0) return;
      const wide = Math.max(x1 - x0 - (x1 - x0 > 4 ? 0.7 : 0), 0.5);
      draw.fillStyle = colour;
      draw.fillRect(x0, y, wide, height);
      if (!text || wide < 40) return;
      draw.save();
      draw.beginPath();
      draw.rect(x0, y, wide - 3, height);
      draw.clip();
      draw.fillStyle = "#ffffff";
      draw.textAlign = "left";
      draw.fillText(text, x0 + 4, y + height / 2 + 0.5);
      draw.restore();
    }
  }

  // ---- a whole run, what repeats written once: rows are executions, a jump is rows and earlier jumps done again

  class FoldedRun {
    constructor(d) {
      this.units = d.units;
      this.names = d.operators.length;
      this.width = this.names + d.causes.length + 1; // per operator busy, per cause waiting, bytes
      const count = d.rows.length / 7, rows = new Float64Array(d.rows.length);
      for (let r = 0, last = 0; r < count; r++) { // each row is told from the one before it
        const at = 7 * r, begin = last + d.rows[at + 5];
        last = begin;
        rows[at] = d.rows[at];
        rows[at + 1] = begin - d.rows[at + 1];
        rows[at + 2] = rows[at + 1] + d.rows[at + 2];
        rows[at + 3] = rows[at + 2] + d.rows[at + 3];
        rows[at + 4] = d.rows[at + 4];
        rows[at + 5] = begin;
        rows[at + 6] = begin + d.rows[at + 6];
      }
      Object.assign(this, { d, rows, lanes: d.units.map(() => ({ item: [], start: [], end: [], low: [], high: [] })) });
      const places = count + d.jumps.length;
      const before = this.lanes.map(() => new Int32Array(places + 1)); // items of a lane before each place
      let row = 0, place = 0;
      const pass = () => { place++; this.lanes.forEach((lane, u) => { before[u][place] = lane.item.length; }); };
      const addRow = () => {
        const unit = d.instructions[rows[7 * row]][1];
        if (unit >= 0) {
          const lane = this.lanes[unit];
          lane.item.push(row);
          lane.start.push(rows[7 * row + 1]);
          lane.end.push(rows[7 * row + 6]);
          lane.low.push(0);
          lane.high.push(0);
        }
        row++;
        pass();
      };
      d.jumps.forEach(([rowsBefore, later, times, row0, row1, jump0, jump1], j) => {
        while (row < rowsBefore) addRow();
        this.lanes.forEach((lane, u) => {
          const low = before[u][row0 + jump0], high = before[u][row1 + jump1];
          if (low === high) return; // this unit does nothing in it
          lane.item.push(-1 - j);
          lane.start.push(lane.start[low] + later);
          lane.end.push(lane.end[high - 1] + later * times);
          lane.low.push(low);
          lane.high.push(high);
        });
        pass();
      });
      while (row < count) addRow();
      const W = this.width, one = new Float64Array(W);
      for (const lane of this.lanes) { // sums of all that comes before an item
        const n = lane.item.length, sums = lane.sums = new Float64Array((n + 1) * W);
        for (let i = 0; i < n; i++) {
          one.fill(0);
          if (lane.item[i] >= 0) this.addRow(lane.item[i], Infinity, one);
          else {
            const times = d.jumps[-1 - lane.item[i]][2], low = lane.low[i] * W, high = lane.high[i] * W;
            for (let k = 0; k < W; k++) one[k] = times * (sums[high + k] - sums[low + k]);
          }
          for (let k = 0; k < W; k++) sums[(i + 1) * W + k] = sums[i * W + k] + one[k];
        }
      }
    }
    /** Add what an execution has of each kind until a time. */
    addRow(row, until, out) {
      const { d, rows } = this, at = 7 * row, [operator, unit, , busy, moved] = d.instructions[rows[at]];
      const causes = this.names, upTo = (a, b) => Math.max(0, Math.min(b, until) - a);
      out[causes + d.instruction] += upTo(rows[at + 1], rows[at + 2]);
      out[causes + rows[at + 4]] += upTo(rows[at + 2], rows[at + 3]);
      out[causes + d.holder[unit]] += upTo(rows[at + 3], rows[at + 5]);
      const length = rows[at + 6] - rows[at + 5], share = length ? upTo(rows[at + 5], rows[at + 6]) / length : +(until >= rows[at + 5]);
      out[operator] += busy * share;
      out[causes + d.within[unit]] += (length - busy) * share;
      out[this.width - 1] += moved * share;
    }
    static last(starts, low, high, t) { // the last of low..high-1 that starts at t or before, or low - 1
      while (low < high) {
        const middle = (low + high) >> 1;
        if (starts[middle] <= t) low = middle + 1; else high = middle;
      }
      return low - 1;
    }
    /** Add all that a lane's items low..high-1 have until a time. */
    sum(lane, low, high, t, out) {
      const i = FoldedRun.last(lane.start, low, high, t), W = this.width;
      if (i < low) return;
      for (let k = 0; k < W; k++) out[k] += lane.sums[i * W + k] - lane.sums[low * W + k];
      if (lane.item[i] >= 0) return this.addRow(lane.item[i], t, out);
      const [, later, times] = this.d.jumps[-1 - lane.item[i]], inner = lane.low[i], end = lane.high[i];
      const copy = times === 1 ? 1 : Math.min(times, Math.max(1, Math.floor((t - lane.start[inner]) / later)));
      for (let k = 0; k < W; k++) out[k] += (copy - 1) * (lane.sums[end * W + k] - lane.sums[inner * W + k]);
      this.sum(lane, inner, end, t - copy * later, out);
    }
    until(unit, t, out) {
      out.fill(0);
      const lane = this.lanes[unit];
      this.sum(lane, 0, lane.item.length, t, out);
      return out;
    }
    /** Call for every execution of a lane between two times, until it says enough. */
    each(lane, low, high, offset, from, to, call) {
      for (let i = Math.max(low, FoldedRun.last(lane.start, low, high, from - offset)); i < high && lane.start[i] + offset < to; i++) {
        if (lane.end[i] + offset <= from) continue;
        if (lane.item[i] >= 0) {
          if (call(lane.item[i], offset) === false) return false;
          continue;
        }
        const [, later, times] = this.d.jumps[-1 - lane.item[i]], inner = lane.low[i], end = lane.high[i];
        const first = times === 1 ? 1 : Math.min(times, Math.max(1, Math.floor((from - offset - lane.start[inner]) / later)));
        for (let copy = first; copy <= times && lane.start[inner] + offset + copy * later < to; copy++)
          if (this.each(lane, inner, end, offset + copy * later, from, to, call) === false) return false;
      }
      return true;
    }
    visible(from, to, most, call) {
      let seen = 0;
      return this.lanes.every((lane, unit) => this.each(lane, 0, lane.item.length, 0, from, to, (row, offset) => {
        if (++seen > most) return false;
        return call(unit, row, offset);
      }));
    }
  }

  class Timeline extends View {
    constructor(figure, d) {
      super(figure, d.cycles, 16, (t) => this.to - this.from > 2e7 ? `${number(t / 1e6)} M` : number(t));
      this.run = new FoldedRun(d);
      this.d = d;
      this.causes = d.causes.map((c, n) => [c, d.colours[n]]);
      legend(figure, d.operators.map((name, n) => [name, hue(n)]));
      legend(figure, this.causes.filter((_, n) => d.seen[n]).map(([name, colour]) => [`waits: ${name}`, colour]));
      const choose = figure.querySelector("select");
      if (choose) choose.addEventListener("change", () => {
        const [from, to] = d.firsts[choose.value] || [0, d.cycles];
        const span = Math.max(this.least, (to - from) * 1.15);
        this.show(from - span * 0.07, Math.min(span, d.cycles));
      });
      this.draw();
    }
    draw() {
      const { d, run } = this, HIGH = 30, STRIP = 9, GAP = 11, AREA = d.bandwidth ? 46 : 0;
      const bottom = d.units.length * (HIGH + STRIP + GAP) + (AREA ? AREA + GAP + 4 : 0) + 8;
      const [draw, width] = surface(this.canvas, bottom + 20);
      this.width = width;
      this.axis(draw, bottom + 9);
      const laneY = (u) => 6 + u * (HIGH + STRIP + GAP);
      const single = [];
      const all = run.visible(this.from, this.to, 2500, (unit, row, offset) => { single.push([unit, row, offset]); });
      this.single = all ? single : null;
      const W = run.width, N = run.names, pixels = Math.max(1, Math.floor(this.room));
      const before = new Float64Array(W), after = new Float64Array(W), moved = new Float64Array(pixels), totals = [];
      d.units.forEach((name, u) => {
        const y = laneY(u);
        this.lane(draw, name, y + HIGH / 2);
        draw.fillStyle = ink("--track");
        draw.fillRect(this.left, y, this.room, HIGH);
        run.until(u, this.from, before);
        totals.push(before.slice());
        const began = totals[u];
        for (let p = 0; p < pixels; p++) {
          const t = this.from + (p + 1) / pixels * (this.to - this.from), step = (this.to - this.from) / pixels;
          run.until(u, t, after);
          moved[p] += after[W - 1] - before[W - 1];
          if (!all) {
            let base = y + HIGH, low = y + HIGH + 1;
            for (let k = 0; k < W - 1; k++) {
              const share = (after[k] - before[k]) / step;
              if (share < 1e-9) continue;
              draw.fillStyle = k < N ? hue(k) : d.colours[k - N];
              if (k < N) draw.fillRect(this.left + p, base -= share * HIGH, 1, share * HIGH);
              else { draw.fillRect(this.left + p, low, 1, share * STRIP); low += share * STRIP; }
            }
          }
          before.set(after);
        }
        for (let k = 0; k < W; k++) began[k] = after[k] - began[k];
      });
      if (all) for (const [u, row, offset] of single) {
        const at = 7 * row, r = run.rows, y = laneY(u), [operator, unit, what] = d.instructions[r[at]];
        this.block(draw, r[at + 5] + offset, r[at + 6] + offset, y, HIGH, hue(operator), `${d.operators[operator]}: ${what}`);
        const causes = [d.instruction, r[at + 4], d.holder[unit]];
        causes.forEach((cause, n) => {
          const a = r[at + 1 + n], b = n === 2 ? r[at + 5] : r[at + 2 + n];
          if (b > a) this.block(draw, a + offset, b + offset, y + HIGH + 1, STRIP, d.colours[cause]);
        });
      }
      if (AREA) {
        const top = laneY(d.units.length) + 4, step = (this.to - this.from) / pixels;
        const rate = [...moved].map((m) => m / step), most = Math.max(d.bandwidth, ...rate) || 1;
        this.lane(draw, this.width < 560 ? "B/cycle" : "bytes/cycle", top + AREA / 2);
        draw.fillStyle = ink("--track");
        draw.fillRect(this.left, top, this.room, AREA);
        draw.fillStyle = "#3f8f88";
        rate.forEach((m, p) => draw.fillRect(this.left + p, top + AREA * (1 - m / most), 1, AREA * m / most));
        draw.strokeStyle = "#b0413e";
        draw.beginPath();
        draw.moveTo(this.left, top + AREA * (1 - d.bandwidth / most));
        draw.lineTo(this.left + this.room, top + AREA * (1 - d.bandwidth / most));
        draw.stroke();
      }
      this.totals = totals;
      this.say();
    }
    say() {
      const { d, run } = this, span = this.to - this.from, parts = d.units.map((name, u) => {
        const sums = this.totals[u], busy = sums.slice(0, run.names).reduce((a, b) => a + b, 0);
        const causes = [...sums.slice(run.names, run.width - 1)].map((c, n) => [c / span, d.causes[n]]).filter(([c]) => c > 0.005);
        causes.sort((a, b) => b[0] - a[0]);
        const percent = (c) => `${(c * 100).toFixed(c < 0.1 ? 1 : 0)} %`;
        const waits = causes.slice(0, 2).map(([c, n]) => `${percent(c)} waiting: ${n}`);
        const blank = 1 - (busy + sums.slice(run.names, run.width - 1).reduce((a, b) => a + b, 0)) / span;
        if (blank > 0.005) waits.push(`${percent(blank)} at barriers or done`);
        return `${name} ${(busy / span * 100).toFixed(1)} % busy${waits.length ? ` (${waits.join(", ")})` : ""}`;
      });
      const what = this.single ? "" : "; each column of pixels is a sum, zoom in for single instructions";
      this.readout.textContent = `Cycles ${number(this.from)} to ${number(this.to)}, ${duration(span / d.clock)}: ${parts.join("; ")}${what}.`;
    }
    point(t, y) {
      const u = Math.floor((y - 6) / 50), { d, run } = this;
      if (t < this.from || t > this.to || !d.units[u] || !this.single) return this.readout.textContent && this.say();
      const found = this.single.find(([unit, row, offset]) => unit === u && run.rows[7 * row + 1] + offset <= t && t < run.rows[7 * row + 6] + offset);
      if (!found) return this.say();
      const [, row, offset] = found, at = 7 * row, r = run.rows, [operator, unit, what] = d.instructions[r[at]];
      const waited = r[at + 5] - r[at + 1];
      const cause = r[at + 3] > r[at + 2] ? r[at + 4] : r[at + 2] > r[at + 1] ? d.instruction : d.holder[unit];
      this.readout.textContent = `${d.units[u]}: ${d.operators[operator]}, ${what}, cycles ${number(r[at + 5] + offset)} to ` +
        `${number(r[at + 6] + offset)}${waited > 0 ? `, after ${number(waited)} cycles of waiting (${d.causes[cause]})` : ""}.`;
    }
    csv() {
      const { d, run } = this, lines = [];
      const all = run.visible(this.from, this.to, 50000, (u, row, offset) => {
        const at = 7 * row, r = run.rows, [operator, , what] = d.instructions[r[at]];
        lines.push([d.units[u], d.operators[operator], what, r[at + 1] + offset, r[at + 5] + offset, r[at + 6] + offset]);
      });
      if (all) return save("timeline", [["unit", "operator", "instruction", "waits_from_cycle", "begin_cycle", "end_cycle"], ...lines]);
      const W = run.width, a = new Float64Array(W), b = new Float64Array(W), bins = 1000, sums = [];
      d.units.forEach((name, u) => {
        run.until(u, this.from, a);
        for (let p = 1; p <= bins; p++) {
          const t = this.from + p / bins * (this.to - this.from);
          run.until(u, t, b);
          sums.push([name, t - (this.to - this.from) / bins, t, ...[...b].map((x, k) => x - a[k])]);
          a.set(b);
        }
      });
      save("timeline", [["unit", "from_cycle", "to_cycle", ...d.operators.map((o) => `busy: ${o}`), ...d.causes.map((c) => `waiting: ${c}`), "bytes"], ...sums]);
    }
  }

  // ---- spans on tracks: the passes of a pipeline

  class Tracks extends View {
    constructor(figure, d) {
      super(figure, d.end, Math.max(d.end / 1e6, 1), (t) => duration(t * d.tick));
      this.d = d;
      this.kinds = d.kinds.map((name, n) => [name, hue([0, 1, 2, 3][n] ?? n)]);
      this.spans = d.spans.map((flat) => {
        const found = [];
        for (let i = 0, t = 0; i < flat.length; i += 4) {
          const begin = t + flat[i + 2];
          t = begin + flat[i + 3];
          found.push([d.names[flat[i]], flat[i + 1], begin, t]);
        }
        return found;
      });
      legend(figure, this.kinds);
      this.draw();
    }
    draw() {
      const n = this.d.tracks.length, pitch = Math.max(6, Math.min(30, 620 / n)), high = pitch - (pitch > 12 ? 5 : 1);
      const [draw, width] = surface(this.canvas, n * pitch + 32);
      this.width = width;
      this.fit(draw, this.d.tracks);
      this.pitch = pitch;
      this.axis(draw, n * pitch + 18);
      this.spans.forEach((spans, track) => {
        const y = 6 + track * pitch;
        if (pitch > 12 || track % Math.ceil(14 / pitch) === 0) this.lane(draw, this.d.tracks[track], y + high / 2);
        draw.fillStyle = ink("--track");
        draw.fillRect(this.left, y, this.room, high);
        for (const [name, kind, from, to] of spans)
          if (to > this.from && from < this.to) this.block(draw, from, to, y, high, this.kinds[kind][1], high > 11 ? name : "");
      });
      const shares = this.spans.map((spans) => spans.reduce((sum, [, , a, b]) => sum + Math.max(0, Math.min(b, this.to) - Math.max(a, this.from)), 0) / (this.to - this.from));
      const told = shares.slice(0, 8).map((s, t) => `${this.d.tracks[t]} ${(s * 100).toFixed(1)} %`).join(", ");
      this.readout.textContent = `${duration(this.from * this.d.tick)} to ${duration(this.to * this.d.tick)}; at work: ${told}${shares.length > 8 ? ", ..." : ""}.`;
    }
    point(t, y) {
      const track = Math.floor((y - 6) / this.pitch), found = (this.spans[track] || []).find(([, , a, b]) => a <= t && t < b);
      if (found) this.readout.textContent = `${this.d.tracks[track]}: ${this.kinds[found[1]][0]} ${found[0]}, ${duration(found[2] * this.d.tick)} to ${duration(found[3] * this.d.tick)}.`;
    }
    csv() {
      save("pipeline", [["track", "pass", "kind", "begin_s", "end_s"], ...this.spans.flatMap((spans, t) =>
        spans.map(([name, kind, a, b]) => [this.d.tracks[t], name, this.kinds[kind][0], a * this.d.tick, b * this.d.tick]))]);
    }
  }

  // ---- what stages hold over time: a lane for each, all in one scale

  function bytes(size) {
    for (const [unit, least] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]])
      if (size >= least || unit === "B") return `${+(size / least).toPrecision(4)} ${unit}`;
  }

  class HeldBytes extends View {
    constructor(figure, d) {
      super(figure, d.end, Math.max(d.end / 1e6, 1), (t) => duration(t * d.tick));
      this.d = d;
      this.most = Math.max(...d.steps.map((steps, n) => d.always[n] + Math.max(0, ...steps.map(([, size]) => size))));
      legend(figure, [["parameters, gradients, optimizer", hue(0)], ["activations", hue(2)]]);
      this.draw();
    }
    draw() {
      const n = this.d.tracks.length, pitch = Math.max(16, Math.min(64, 620 / n)), high = pitch - 4;
      const [draw, width] = surface(this.canvas, n * pitch + 32);
      this.width = width;
      this.fit(draw, this.d.tracks);
      this.pitch = pitch;
      this.axis(draw, n * pitch + 18);
      this.d.steps.forEach((steps, track) => {
        const foot = 6 + track * pitch + high, scale = high / this.most, always = this.d.always[track] * scale;
        this.lane(draw, this.d.tracks[track], foot - high / 2);
        draw.fillStyle = ink("--track");
        draw.fillRect(this.left, foot - high, this.room, high);
        draw.fillStyle = hue(0);
        draw.fillRect(this.left, foot - always, this.room, always);
        draw.fillStyle = hue(2);
        steps.forEach(([at, size], k) => {
          const x0 = Math.max(this.x(at), this.left), x1 = Math.min(this.x(k + 1 < steps.length ? steps[k + 1][0] : this.d.end), this.left + this.room);
          if (x1 > x0) draw.fillRect(x0, foot - always - size * scale, x1 - x0, size * scale);
        });
      });
      const told = this.d.steps.slice(0, 8).map((steps, track) => `${this.d.tracks[track]} ${bytes(this.d.always[track] + this.peak(steps))}`);
      this.readout.textContent = `${duration(this.from * this.d.tick)} to ${duration(this.to * this.d.tick)}; at most: ${told.join(", ")}${n > 8 ? ", ..." : ""}.`;
    }
    peak(steps) { // within what is shown, from what is held when it begins
      let most = 0;
      steps.forEach(([at, size], k) => {
        const until = k + 1 < steps.length ? steps[k + 1][0] : this.d.end;
        if (at < this.to && until > this.from) most = Math.max(most, size);
      });
      return most;
    }
    point(t, y) {
      const track = Math.floor((y - 6) / this.pitch), steps = this.d.steps[track];
      if (!steps || t < 0 || t > this.d.end) return;
      const size = steps.reduce((held, [at, now]) => at <= t ? now : held, 0);
      this.readout.textContent = `${this.d.tracks[track]} at ${duration(t * this.d.tick)}: ${bytes(this.d.always[track] + size)}, of which activations ${bytes(size)}.`;
    }
    csv() {
      save("memory-over-time", [["track", "from_s", "held_bytes", "activation_bytes"], ...this.d.steps.flatMap((steps, n) =>
        [[0, 0], ...steps].map(([at, size]) => [this.d.tracks[n], at * this.d.tick, this.d.always[n] + size, size]))]);
    }
  }

  // ---- lines over time: panels below each other, each with a scale of its own, read span by span

  class Lines extends View {
    constructor(figure, d) {
      const spans = d.panels[0].lines[0].values.length, total = spans * d.step_s;
      const [unit, size] = [["h", 3600, 7200], ["min", 60, 180], ["s", 1, 1], ["ms", 1e-3, 1e-3], ["µs", 1e-6, 0]].find(([, , from]) => total >= from);
      super(figure, total / size, Math.min(4, spans) * d.step_s / size, (t) => `${+t.toPrecision(6)} ${unit}`);
      Object.assign(this, { d, spans, unit, step: d.step_s / size, cursor: null });
      let n = 0;
      this.panels = d.panels.map((panel) => ({ ...panel, lines: panel.lines.map((line, k) => ({ ...line, colour: hue(n++), dashes: k ? [6, 3] : [] })) }));
      for (const panel of this.panels) panel.most = Lines.round(Math.max(...panel.lines.flatMap((line) => line.values)));
      legend(figure, this.panels.flatMap((panel) => panel.lines.map((line) => [line.name, line.colour])));
      this.canvas.addEventListener("pointerdown", (event) => this.point(this.time(event.offsetX)));
      this.draw();
    }
    static round(most) { // the next number that is 1, 2, 2.5 or 5 times a power of ten
      if (!(most > 0)) return 1;
      const power = 10 ** Math.floor(Math.log10(most));
      return power * [1, 2, 2.5, 5, 10].find((m) => m * power >= most * (1 - 1e-9));
    }
    value(panel, value) {
      return panel.share ? `${+(value * 100).toPrecision(3)} %` : Number(value.toPrecision(4)).toLocaleString("en-US");
    }
    act(what, typed) {
      if (what === "all") this.cursor = null;
      if (!typed || (what !== "left" && what !== "right")) return super.act(what);
      const first = Math.ceil(this.from / this.step - 1e-9), last = Math.floor(this.to / this.step + 1e-9) - 1;
      const at = this.cursor ?? (what === "left" ? last + 1 : first - 1);
      this.cursor = Math.max(0, Math.min(this.spans - 1, at + (what === "left" ? -1 : 1)));
      const begin = this.cursor * this.step, end = begin + this.step, span = this.to - this.from;
      if (begin < this.from || end > this.to) return this.show(begin < this.from ? begin : end - span, span);
      this.draw();
    }
    draw() {
      const HIGH = 84, TITLE = 22, GAP = 8, pitch = HIGH + TITLE + GAP, n = this.panels.length;
      const [draw, width] = surface(this.canvas, n * pitch + 20);
      this.width = width;
      this.axis(draw, n * pitch + 10);
      this.panels.forEach((panel, at) => {
        const top = at * pitch + TITLE, foot = top + HIGH, Y = (v) => foot - v / panel.most * HIGH;
        draw.fillStyle = ink("--page"); // no line of the axis crosses a title
        draw.fillRect(0, top - TITLE, width, TITLE);
        draw.fillStyle = ink("--ink");
        draw.textAlign = "left";
        draw.fillText(panel.title, this.left, top - 10);
        draw.fillStyle = ink("--soft");
        draw.textAlign = "right";
        draw.strokeStyle = ink("--line");
        draw.lineWidth = 1;
        for (const share of [0, 0.5, 1]) {
          if (share !== 0.5) draw.fillText(this.value(panel, panel.most * share), this.left - 8, Y(panel.most * share) + (share ? 4 : -4));
          draw.beginPath();
          draw.moveTo(this.left, Y(panel.most * share));
          draw.lineTo(this.left + this.room, Y(panel.most * share));
          draw.stroke();
        }
        draw.save();
        draw.beginPath();
        draw.rect(this.left, top - 1, this.room, HIGH + 2);
        draw.clip();
        for (const line of panel.lines) {
          draw.beginPath();
          line.values.forEach((v, k) => {
            draw.lineTo(this.x(k * this.step), Y(v));
            draw.lineTo(this.x((k + 1) * this.step), Y(v));
          });
          draw.strokeStyle = line.colour;
          draw.lineWidth = 1.6;
          draw.setLineDash(line.dashes);
          draw.stroke();
          draw.setLineDash([]);
          draw.lineTo(this.x(this.spans * this.step), foot);
          draw.lineTo(this.x(0), foot);
          draw.globalAlpha = 0.12;
          draw.fillStyle = line.colour;
          draw.fill();
          draw.globalAlpha = 1;
        }
        if (this.cursor !== null) {
          const x = this.x((this.cursor + 0.5) * this.step);
          draw.strokeStyle = ink("--ink");
          draw.lineWidth = 1;
          draw.beginPath();
          draw.moveTo(x, top);
          draw.lineTo(x, foot);
          draw.stroke();
          for (const line of panel.lines) {
            draw.fillStyle = line.colour;
            draw.beginPath();
            draw.arc(x, Y(line.values[this.cursor]), 3.5, 0, 7);
            draw.fill();
          }
        }
        draw.restore();
      });
      this.say();
    }
    say() {
      const at = this.cursor, low = Math.max(0, Math.floor(this.from / this.step + 1e-9)), high = Math.min(this.spans, Math.ceil(this.to / this.step - 1e-9));
      const told = this.panels.flatMap((panel) => panel.lines.map((line) => {
        const unit = line.unit ? ` ${line.unit}` : "";
        if (at !== null) return `${line.name} ${this.value(panel, line.values[at])}${unit}`;
        const shown = line.values.slice(low, high), mean = shown.reduce((a, b) => a + b, 0) / shown.length;
        return `${line.name} ${this.value(panel, mean)}${unit} in the mean, at most ${this.value(panel, Math.max(...shown))}`;
      }));
      const [from, to] = at === null ? [this.from, this.to] : [at * this.step, (at + 1) * this.step];
      this.readout.textContent = `${+from.toPrecision(4)} to ${+to.toPrecision(4)} ${this.unit}: ${told.join("; ")}.`;
    }
    point(t) {
      this.cursor = Math.max(0, Math.min(this.spans - 1, Math.floor(t / this.step)));
      this.draw();
    }
    csv() {
      const lines = this.panels.flatMap((panel) => panel.lines), step = this.d.step_s;
      save(this.d.file, [["from_s", "to_s", ...lines.map((line) => line.unit ? `${line.name} (${line.unit})` : line.name)],
        ...lines[0].values.map((_, k) => [k * step, (k + 1) * step, ...lines.map((line) => line.values[k])])]);
    }
  }

  // ---- roofline: numbers beside the points, names in the list below

  function roofline(figure, d) {
    const canvas = figure.querySelector("canvas");
    const points = [...d.points].sort((a, b) => b.share - a.share);
    const draw = () => {
      const [pen, width] = surface(canvas, width0() < 560 ? 300 : 380), high = width0() < 560 ? 300 : 380;
      const left = 62, top = 12, wide = width - left - 14, deep = high - top - 48, log = Math.log10;
      const ridge = d.peak / d.bandwidth, xs = [...points.map((p) => p.x), ridge], ys = [...points.map((p) => p.y), d.peak];
      const x0 = Math.floor(log(Math.min(...xs) / 1.5)), x1 = Math.ceil(log(Math.max(...xs) * 1.5));
      const y0 = Math.floor(log(Math.min(...ys) / 1.5)), y1 = Math.ceil(log(Math.max(...ys) * 1.2));
      const X = (x) => left + (log(x) - x0) / (x1 - x0) * wide, Y = (y) => top + (1 - (log(y) - y0) / (y1 - y0)) * deep;
      pen.strokeStyle = ink("--line");
      pen.fillStyle = ink("--soft");
      const every = Math.ceil((x1 - x0) / (wide / 60));
      for (let p = x0; p <= x1; p++) {
        pen.strokeRect(X(10 ** p), top, 0, deep);
        pen.textAlign = "center";
        if ((p - x0) % every === 0) pen.fillText(p < -3 || p > 5 ? `1e${p}` : `${10 ** p}`.slice(0, 7), X(10 ** p), top + deep + 13);
      }
      for (let p = y0; p <= y1; p++) {
        pen.strokeRect(left, Y(10 ** p), wide, 0);
        pen.textAlign = "right";
        pen.fillText(p < -3 || p > 5 ? `1e${p}` : `${10 ** p}`.slice(0, 7), left - 6, Y(10 ** p));
      }
      pen.textAlign = "center";
      pen.fillText(width < 560 ? "MACs per byte of main memory" : "multiply-accumulates per byte of main-memory traffic", left + wide / 2, high - 12);
      pen.save();
      pen.translate(12, top + deep / 2);
      pen.rotate(-Math.PI / 2);
      pen.fillText("MACs per cycle", 0, 0);
      pen.restore();
      pen.save();
      pen.beginPath();
      pen.rect(left, top, wide, deep);
      pen.clip();
      pen.strokeStyle = "#b0413e";
      pen.lineWidth = 2;
      pen.beginPath();
      pen.moveTo(X(10 ** x0), Y(10 ** x0 * d.bandwidth));
      pen.lineTo(X(ridge), Y(d.peak));
      pen.lineTo(X(10 ** x1), Y(d.peak));
      pen.stroke();
      pen.restore();
      pen.lineWidth = 1;
      const radius = (p) => 4 + 13 * Math.sqrt(p.share), boxes = [];
      points.forEach((p) => {
        pen.globalAlpha = 0.75;
        pen.fillStyle = hue(p.n);
        pen.beginPath();
        pen.arc(X(p.x), Y(p.y), radius(p), 0, 7);
        pen.fill();
        pen.globalAlpha = 1;
        pen.strokeStyle = ink("--page");
        pen.stroke();
      });
      pen.font = "600 12px system-ui, 'DejaVu Sans', sans-serif";
      points.forEach((p) => { // a number stands where no other one does
        const text = `${p.n + 1}`, w = pen.measureText(text).width + 5;
        for (let ring = 0; ring < 9; ring++) for (let turn = 0; turn < 12; turn++) {
          const angle = (turn * 5 % 12) * Math.PI / 6 - Math.PI / 2, far = radius(p) + 9 + ring * 13;
          const x = X(p.x) + Math.cos(angle) * far, y = Y(p.y) + Math.sin(angle) * far, box = [x - w / 2, y - 7, x + w / 2, y + 7];
          if (box[0] < left || box[2] > left + wide || box[1] < top || box[3] > top + deep) continue;
          if (boxes.some((o) => box[0] < o[2] && box[2] > o[0] && box[1] < o[3] && box[3] > o[1])) continue;
          if (ring < 7 && points.some((o) => Math.hypot(X(o.x) - x, Y(o.y) - y) < radius(o) + 7)) continue;
          boxes.push(box);
          pen.strokeStyle = ink("--soft");
          pen.beginPath();
          pen.moveTo(X(p.x) + Math.cos(angle) * radius(p), Y(p.y) + Math.sin(angle) * radius(p));
          pen.lineTo(x - Math.cos(angle) * 8, y - Math.sin(angle) * 8);
          if (ring) pen.stroke();
          pen.fillStyle = ink("--ink");
          pen.textAlign = "center";
          pen.fillText(text, x, y);
          return;
        }
      });
    };
    const width0 = () => canvas.parentElement.clientWidth;
    legend(figure, [...d.points].map((p) => [`${p.n + 1} ${p.name}`, hue(p.n)]));
    figure.querySelector("[data-do=csv]").addEventListener("click", () => save("roofline",
      [["operator", "macs_per_byte", "macs_per_cycle", "share_of_time"], ...d.points.map((p) => [p.name, p.x, p.y, p.share])]));
    redraws.push(draw);
    draw();
  }

  // ---- links of a network: a square from each node to each, darker where more is carried

  class LinkMap {
    constructor(figure, d) {
      Object.assign(this, { figure, d, measure: "busy" });
      this.canvas = figure.querySelector("canvas");
      this.readout = figure.querySelector(".readout");
      this.links = d.links.map(([from, to, bytes, busy, rate]) => ({ from, to, bytes, busy, rate }));
      this.links.sort((a, b) => a.from - b.from || a.to - b.to);
      this.most = { bytes: Math.max(...this.links.map((l) => l.bytes), 0), busy: Math.max(...this.links.map((l) => l.busy), 0) };
      this.at = this.busiest();
      this.by = new Map(this.links.map((l, n) => [l.from * d.nodes.length + l.to, n]));
      const choose = figure.querySelector("select");
      choose.addEventListener("change", () => { this.measure = choose.value; this.draw(); });
      figure.querySelector("[data-do=busiest]").addEventListener("click", () => this.go(this.busiest()));
      figure.querySelector("[data-do=csv]").addEventListener("click", () => save("links", [["from", "to", "bytes", "busy_share", "bytes_per_second"],
        ...this.links.map((l) => [d.nodes[l.from], d.nodes[l.to], l.bytes, l.busy, l.rate])]));
      this.canvas.addEventListener("keydown", (e) => {
        const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1 }[e.key];
        if (e.key === "Home") this.go(this.busiest());
        else if (step) this.go(e.key.endsWith("Left") || e.key.endsWith("Right") ? this.at + step : this.row(step));
        else return;
        e.preventDefault();
      });
      this.canvas.addEventListener("pointerdown", (e) => this.point(e.offsetX, e.offsetY));
      this.canvas.addEventListener("pointermove", (e) => this.point(e.offsetX, e.offsetY));
      redraws.push(() => this.draw());
      this.draw();
    }
    busiest() {
      return this.links.reduce((best, l, n) => l[this.measure] > this.links[best][this.measure] ? n : best, 0);
    }
    row(step) { // the first link of the node before or behind, as near to the same target as there is one
      const here = this.links[this.at], rows = [...new Set(this.links.map((l) => l.from))];
      const next = rows[rows.indexOf(here.from) + step];
      if (next === undefined) return this.at;
      const near = (l) => Math.abs(l.to - here.to);
      return this.links.reduce((best, l, n) => l.from === next && (best < 0 || near(l) < near(this.links[best])) ? n : best, -1);
    }
    go(at) {
      if (at < 0 || at >= this.links.length) return;
      this.at = at;
      this.draw();
    }
    point(x, y) {
      const found = this.by.get(Math.floor((y - this.top) / this.pitch) * this.d.nodes.length + Math.floor((x - this.left) / this.pitch));
      if (found !== undefined && x >= this.left && x < this.left + this.pitch * this.d.nodes.length) this.go(found);
    }
    told(value) {
      return this.measure === "busy" ? `${(value * 100).toFixed(1)} %` : `${number(value)} B`;
    }
    draw() {
      const n = this.d.nodes.length, full = this.canvas.parentElement.clientWidth;
      const size = Math.max(...this.d.nodes.map((name) => name.length));
      this.left = Math.min(size * 7 + 10, 110);
      this.top = 24;
      const side = Math.min(full - this.left - 4, Math.max(140, Math.min(640, n * 34)));
      this.pitch = side / n;
      const [pen] = surface(this.canvas, this.top + side + 44), least = Math.max(this.pitch - (this.pitch > 6 ? 1 : 0), 1.5);
      pen.fillStyle = ink("--track");
      pen.fillRect(this.left, this.top, side, side);
      for (const l of this.links) {
        pen.globalAlpha = 1;
        pen.fillStyle = ink("--page");
        pen.fillRect(this.left + l.to * this.pitch, this.top + l.from * this.pitch, least, least);
        pen.globalAlpha = l[this.measure] ? 0.12 + 0.88 * l[this.measure] / this.most[this.measure] : 0.04;
        pen.fillStyle = "#b0413e";
        pen.fillRect(this.left + l.to * this.pitch, this.top + l.from * this.pitch, least, least);
      }
      pen.globalAlpha = 1;
      pen.fillStyle = ink("--soft");
      const every = Math.ceil(13 / this.pitch), wide = Math.ceil((size * 7 + 6) / this.pitch);
      pen.textAlign = "right";
      for (let at = 0; at < n; at += every) pen.fillText(this.d.nodes[at], this.left - 5, this.top + (at + 0.5) * this.pitch);
      pen.textAlign = "center";
      for (let at = 0; at < n; at += wide) {
        const x = this.left + (at + 0.5) * this.pitch, half = pen.measureText(this.d.nodes[at]).width / 2;
        if (x + half <= full) pen.fillText(this.d.nodes[at], Math.max(x, this.left - 30 + half), this.top - 10);
      }
      const y = this.top + side + 16, steps = 40, room = steps * Math.floor(Math.min(side, 240) / steps);
      for (let at = 0; at < steps; at++) {
        pen.globalAlpha = 0.12 + 0.88 * at / (steps - 1);
        pen.fillStyle = "#b0413e";
        pen.fillRect(this.left + at * room / steps, y, room / steps, 8);
      }
      pen.globalAlpha = 1;
      pen.fillStyle = ink("--soft");
      pen.textAlign = "left";
      pen.fillText("nothing", this.left, y + 18);
      pen.textAlign = "right";
      pen.fillText(this.told(this.most[this.measure]), this.left + room, y + 18);
      const l = this.links[this.at];
      pen.strokeStyle = ink("--ink");
      pen.lineWidth = 2;
      pen.strokeRect(this.left + l.to * this.pitch - 1, this.top + l.from * this.pitch - 1, this.pitch + 1, this.pitch + 1);
      this.readout.textContent = `${this.d.nodes[l.from]} to ${this.d.nodes[l.to]}: ${number(l.bytes)} B, busy ${(l.busy * 100).toFixed(1)} % of the time at ${number(l.rate / 1e6)} MB/s.`;
    }
  }

  for (const button of document.querySelectorAll("[data-chart]")) button.addEventListener("click", () => {
    const found = DATA.charts[button.dataset.chart];
    save(`${button.dataset.chart}-chart`, [found.columns, ...found.rows]);
  });
  const views = {};
  for (const figure of document.querySelectorAll("figure[id]")) {
    const d = DATA[figure.id];
    if (figure.id === "timeline") views.timeline = new Timeline(figure, d);
    if (figure.id === "pipeline") views.pipeline = new Tracks(figure, d);
    if (figure.id === "roofline") roofline(figure, d);
    if (figure.id === "held") views.held = new HeldBytes(figure, d);
    if (figure.id === "overtime") views.overtime = new Lines(figure, d);
    if (figure.id === "links") views.links = new LinkMap(figure, d);
  }
  const again = () => redraws.forEach((draw) => draw());
  addEventListener("resize", again);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  addEventListener("beforeprint", () => { root.classList.add("paper"); again(); });
  addEventListener("afterprint", () => { root.classList.remove("paper"); again(); });
  window.loomViews = views; // for whoever looks from the console
})();
