'use strict';
// Charts of what the node remembers: one axis of time for all, one scale for the
// lines of a chart, from zero, with its unit.

const span = 15 * 60 * 1000; // what the node remembers, in ms
let past = null; // what /console/history said, put together

function svg(tag, attributes, text) {
  const e = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  if (text !== undefined) e.textContent = text;
  return e;
}

// even is the least of 1, 2, 5, 10, 20, ... that is not below v: where an axis ends.
function even(v) {
  if (!(v > 0)) return 1;
  const ten = 10 ** Math.floor(Math.log10(v));
  return [1, 2, 5, 10].map((f) => f * ten).find((top) => top >= v * 0.9999);
}

// unbroken are the runs of values to draw as one line each: where there is no value, or none for longer than usual, is a
// gap.
function unbroken(at, values) {
  const steps = at.slice(1).map((t, i) => t - at[i]).toSorted((a, b) => a - b), usual = steps[Math.floor(steps.length / 2)] || 0;
  const runs = [];
  let last = -1;
  values.forEach((v, i) => {
    if (v < 0) return;
    if (last !== i - 1 || last < 0 || at[i] - at[last] > 3 * usual) runs.push([]);
    runs.at(-1).push(i);
    last = i;
  });
  return runs;
}

// chart draws lines over the last quarter of an hour. mark is a value to compare
// with: [value, what it is].
function chart(title, unit, at, lines, mark) {
  const box = make('div', undefined, 'chart'), head = make('h3', title);
  head.title = title;
  const w = 360, h = 130, left = 40, right = 8, top = 8, bottom = 20;
  const shown = lines.filter((l) => !l.onlyIf || l.values.some((v) => v > 0));
  const most = even(Math.max(...shown.flatMap((l) => l.values), mark ? mark[0] : 0, 0));
  const end = at.length ? at[at.length - 1] : Date.now(), begin = Math.min(end - 60000, Math.max(end - span, at.length ? at[0] : end));
  const x = (t) => left + (w - left - right) * (t - begin) / (end - begin);
  const y = (v) => top + (h - top - bottom) * (1 - v / most);
  const s = svg('svg', { viewBox: `0 0 ${w} ${h}`, role: 'img', 'aria-label': title + ', ' + unit });
  for (const v of [0, most / 2, most]) {
    s.append(svg('line', { class: 'grid', x1: left, x2: w - right, y1: y(v), y2: y(v) }));
    s.append(svg('text', { class: 'axis', x: left - 5, y: y(v) + 3.5, 'text-anchor': 'end' }, number(v)));
  }
  for (const [t, anchor] of [[begin, 'start'], [(begin + end) / 2, 'middle'], [end, 'end']]) {
    s.append(svg('text', { class: 'axis', x: x(t), y: h - 5, 'text-anchor': anchor }, clock(t)));
  }
  if (mark) {
    s.append(svg('line', { class: 'mark', x1: left, x2: w - right, y1: y(mark[0]), y2: y(mark[0]) }));
  }
  for (const l of shown) {
    for (const part of unbroken(at, l.values)) {
      const points = part.map((i) => x(at[i]).toFixed(1) + ',' + y(l.values[i]).toFixed(1));
      if (points.length === 1) points.push(points[0]); // a dot
      s.append(svg('polyline', { class: l.className, points: points.join(' ') }));
    }
  }
  // Last, and with a rim: lines run behind it.
  if (mark) s.append(svg('text', { class: 'axis label', x: left + 4, y: y(mark[0]) + (y(mark[0]) < 20 ? 11 : -3) }, mark[1]));
  const key = make('p');
  for (const l of shown) {
    const now = l.values.length ? l.values[l.values.length - 1] : undefined;
    key.append(make('span', l.name + ' ' + (now < 0 ? '–' : number(now)), l.className), ' ');
  }
  box.append(head, make('p', unit, 'unit'), s, key);
  return box;
}

// chartOf is the place of a rule's chart on the page.
const chartOf = (id) => 'chart-' + encodeURIComponent(id);

function drawCharts(rules) {
  const p = past;
  if (!p || !p.at_ms.length) {
    $('lead').replaceChildren(make('p', 'The first figures come in a few seconds.', 'note'));
    return;
  }
  const known = new Map(rules.map((r) => [[r.domain, r.rule, r.mode].join('\n'), r]));
  const decisions = (c) => [
    { name: 'passed', className: 'one', values: c.passed },
    { name: 'refused', className: 'two', values: c.refused },
    { name: 'without the store, of these', className: 'three', values: c.alone, onlyIf: true },
  ];
  const nodes = p.nodes.at(-1), fleet = p.nodes.some((n) => n > 1);
  const of = fleet ? ', of ' + nodes + (nodes === 1 ? ' node' : ' nodes') : '';
  const here = (name, values) => fleet ? [{ name, className: 'here', values }] : [];
  $('lead').replaceChildren(
    chart('Over-admission of the worst key' + of, '% of its allowance, in a window of the last 30 s', p.at_ms, [{ name: 'worst key', className: 'one', values: p.worst_percent }], [100, 'all that is allowed']),
    chart('All calls' + of, 'calls a second', p.at_ms, [...decisions(p).slice(0, 2), ...here('passed, at this node', p.here.passed), { name: 'no decision', className: 'three', values: p.failed, onlyIf: true }]),
    chart('Slowest in a hundred (p99)' + (fleet ? ', of the slowest node' : ''), 'milliseconds', p.at_ms, [{ name: 'p99', className: 'one', values: p.p99_ms }, ...here('this node', p.here.p99_ms)], Math.max(...p.p99_ms) > 4 ? [20, 'Envoy waits 20 ms'] : null),
  );
  $('charts').replaceChildren(
    ...p.rules.map((c) => {
      const [domain, rule, mode] = c.id.split('\n'), r = known.get(c.id);
      const box = chart(domain + '.' + rule, 'decisions a second, all keys' + of + (r ? '; each key: ' + r.limit : '') + ', ' + mode, p.at_ms, decisions(c));
      box.id = chartOf(c.id);
      return box;
    }),
  );
}

// remember fetches what is new, and puts it behind what is there.
async function remember() {
  const since = past && past.at_ms.length ? past.at_ms[past.at_ms.length - 1] : 0;
  const fresh = await (await fetch('/console/history' + (since ? '?since=' + since : ''), { cache: 'no-store', signal: AbortSignal.timeout(3000) })).json();
  const ids = (h) => h.rules.map((r) => r.id).join('\n\n');
  if (!since || ids(fresh) !== ids(past)) {
    past = since ? null : fresh; // other rules are charted now: all of it once more
    return past ? undefined : remember();
  }
  const cut = (a, b) => a.concat(b || []).slice(-450);
  for (const name of ['at_ms', 'nodes', 'passed', 'refused', 'failed', 'alone', 'p99_ms', 'worst_percent']) past[name] = cut(past[name], fresh[name]);
  for (const name of ['passed', 'p99_ms']) past.here[name] = cut(past.here[name], fresh.here[name]);
  past.rules.forEach((r, i) => { for (const name of ['passed', 'refused', 'alone']) r[name] = cut(r[name], fresh.rules[i][name]); });
}
