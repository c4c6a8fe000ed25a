'use strict';
// Everything from the server is text: it goes into the page by textContent only.

const $ = (id) => document.getElementById(id);
const history = new Map(); // of each rule: what was admitted a second, and drift
let last = null;

function make(tag, text, className) {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  if (className) e.className = className;
  return e;
}

function number(n) {
  if (n === undefined || n === null) return '–';
  if (Math.abs(n) >= 1e6) return (n / 1e6).toFixed(2) + 'M';
  if (Math.abs(n) >= 1e4) return (n / 1e3).toFixed(1) + 'k';
  return Number.isInteger(n) ? String(n) : n.toFixed(1);
}

function duration(ns) {
  const s = ns / 1e9;
  if (Math.abs(s) < 1) return (s * 1000).toFixed(0) + ' ms';
  if (Math.abs(s) < 120) return s.toFixed(1) + ' s';
  if (Math.abs(s) < 7200) return (s / 60).toFixed(0) + ' min';
  return (s / 3600).toFixed(1) + ' h';
}

function rows(table, list, cells) {
  const body = $(table).tBodies[0];
  body.replaceChildren(...list.map((item) => {
    const tr = make('tr');
    for (const [content, className] of cells(item)) {
      const td = make('td', undefined, className);
      if (content instanceof Node) td.append(content); else td.textContent = content;
      if (typeof content === 'string') td.title = content;
      tr.append(td);
    }
    return tr;
  }));
}

function list(id, pairs) {
  $(id).replaceChildren(...pairs.flatMap(([k, v, className]) => [make('dt', k), make('dd', v, className)]));
}

// account is the name of a key in the ledger; a click explains it.
function account(name) {
  const parts = name.split('|');
  if (parts.length < 3 || name.startsWith('#') || name.includes('~') || name.includes(',')) return name;
  const text = (s) => decodeURIComponent(s);
  const button = make('button', name, 'link');
  button.type = 'button';
  button.addEventListener('click', () => {
    try {
      $('domain').value = text(parts[1]);
      $('entries').value = parts.slice(2).map((p) => p.split('=').map(text).join('=')).join(', ');
    } catch { return; }
    explain();
    $('ask').scrollIntoView();
  });
  return button;
}

function rate(now, before, seconds) {
  return before === undefined || seconds <= 0 ? 0 : Math.max(0, now - before) / seconds;
}

function line(values, most, className) {
  const p = document.createElementNS('http://www.w3.org/2000/svg', 'polyline');
  p.setAttribute('class', className);
  p.setAttribute('points', values.map((v, i) => (i * 100 / Math.max(1, values.length - 1)).toFixed(1) + ',' + (38 - 36 * v / most).toFixed(1)).join(' '));
  return p;
}

function chart(rule, h) {
  const box = make('div', undefined, 'chart');
  const title = make('h3', rule.domain + '.' + rule.rule);
  title.title = title.textContent;
  const p = make('p');
  p.append(make('span', number(h.admitted.at(-1)) + ' admitted/s', 'key1'), ' of ' + rule.limit + ', ',
    make('span', number(h.drift.at(-1)) + ' drift', 'key2'), rule.declared > 0 ? '; at most ' + number(rule.declared) + ' over, a key and window' : '; never over');
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  svg.setAttribute('viewBox', '0 0 100 40');
  svg.setAttribute('preserveAspectRatio', 'none');
  svg.setAttribute('role', 'img');
  svg.setAttribute('aria-label', 'admitted a second, and drift');
  svg.append(line(h.admitted, Math.max(1, ...h.admitted), 'one'));
  if (rule.drift_budget > 0) {
    const most = Math.max(rule.drift_budget, ...h.drift);
    svg.append(line(h.drift, most, 'two'), line([rule.drift_budget, rule.drift_budget], most, 'edge'));
  }
  box.append(title, svg, p);
  return box;
}

function verdict(s) {
  const old = new Map((last ? last.rules : []).map((r) => [r.domain + '\n' + r.rule + '\n' + r.mode, r.windows_beyond_bound]));
  const beyond = s.rules.filter((r) => r.windows_beyond_bound > 0);
  const now = beyond.filter((r) => r.windows_beyond_bound > (old.get(r.domain + '\n' + r.rule + '\n' + r.mode) ?? 0));
  const names = (list) => list.map((r) => r.domain + '.' + r.rule).join(', ');
  if (now.length) return ['More is admitted than is declared: ' + names(now), 'bad'];
  if (s.store.breaker_open) return ['The store does not answer: rules decide by on_store_failure', 'bad'];
  if (s.seat_wanted && s.seat < 0) return ['No drift seat: rules of mode approx lease', 'warn'];
  if (last && Object.keys(s.fallbacks).some((k) => s.fallbacks[k] > last.fallbacks[k])) return ['Some decisions are made without the store', 'warn'];
  if (beyond.length) return ['Limits hold now; since the start more was admitted than is declared: ' + names(beyond), 'warn'];
  return ['Limits hold', 'good'];
}

function show(s) {
  const seconds = last ? (new Date(s.now) - new Date(last.now)) / 1000 : 0;
  const before = new Map((last ? last.rules : []).map((r) => [r.domain + '\n' + r.rule + '\n' + r.mode, r]));
  $('version').textContent = s.version;
  const [text, className] = verdict(s);
  $('verdict').textContent = text;
  $('verdict').className = className;
  const decided = (x) => Object.values(x.sources).reduce((a, b) => a + b, 0);
  const perSecond = (f) => last ? rate(f(s), f(last), seconds) : 0;
  const cards = [
    ['calls a second', number(perSecond((x) => x.calls))],
    ['refused a second', number(perSecond((x) => x.over_limit))],
    ['store operations a second', number(perSecond((x) => x.store.round_trips))],
    ['saved for one operation', number((decided(s) - s.store.claims) / Math.max(1, s.store.round_trips))],
    ['keys held', number(s.leases) + ' of ' + number(s.max_keys)],
    ['rules', number(s.rule_count)],
    ['drift seat', s.seat === undefined || !s.seat_wanted ? 'not wanted' : s.seat < 0 ? 'none' : String(s.seat)],
    ['bad configs', number(s.config_load_errors)],
  ];
  $('cards').replaceChildren(...cards.map(([k, v]) => {
    const c = make('div', undefined, 'card');
    c.append(make('b', v), make('span', k));
    return c;
  }));
  const seen = new Set();
  for (const r of s.rules) {
    const id = r.domain + '\n' + r.rule + '\n' + r.mode;
    seen.add(id);
    const b = before.get(id);
    r.admittedRate = b ? rate(r.admitted, b.admitted, seconds) : 0;
    r.deniedRate = b ? rate(r.denied, b.denied, seconds) : 0;
    const h = history.get(id) || { admitted: [], drift: [] };
    h.admitted.push(r.admittedRate);
    h.drift.push(r.drifting);
    if (h.admitted.length > 150) { h.admitted.shift(); h.drift.shift(); }
    history.set(id, h);
  }
  for (const id of history.keys()) if (!seen.has(id)) history.delete(id);
  $('charts').replaceChildren(...s.rules.slice(0, 6).map((r) => chart(r, history.get(r.domain + '\n' + r.rule + '\n' + r.mode))));
  rows('rules', s.rules, (r) => [
    [r.domain + '.' + r.rule], [r.limit], [r.mode], [number(r.admittedRate), 'n'], [number(r.deniedRate), 'n'],
    [number(r.declared), 'n'], [number(r.windows_near_bound), r.windows_near_bound > 0 ? 'n warn' : 'n'],
    [number(r.windows_beyond_bound), r.windows_beyond_bound > 0 ? 'n bad' : 'n'], [number(r.over), 'n'],
    [number(r.drifting) + (r.drift_budget ? ' of ' + number(r.drift_budget) : ''), 'n'], [number(r.leased), 'n'],
    [number(r.stranded), r.stranded > 0 ? 'n warn' : 'n'],
    [Object.entries(r.sources).filter(([, n]) => n > 0).map(([k, n]) => k + ' ' + number(n)).join(', ')],
  ]);
  rows('hottest', s.hottest || [], (k) => [[account(k.account)], [k.rule], [k.per_second ? number(k.per_second) : '–', 'n'], [number(k.spent), 'n'], [number(k.unspent), 'n'], [number(k.limit), 'n'], [k.fence ? String(k.fence) : '–', 'n']]);
  rows('nodes', s.nodes || [], (n) => [[n.debug + (n.here ? ' (this node)' : '')], [n.version], [new Date(n.started).toLocaleString()], [n.seen_seconds + ' s ago']]);
  list('store', s.store.used ? [
    ['state', s.store.breaker_open ? 'does not answer' : 'answers', s.store.breaker_open ? 'bad' : 'good'],
    ['last answer', s.store.sync_age_seconds.toFixed(1) + ' s ago'],
    ['mean round trip', (s.store.mean_seconds * 1000).toFixed(2) + ' ms'],
    ['round trips', number(s.store.round_trips) + ', failed ' + number(s.store.failed)],
    ...Object.entries(s.claims).map(([k, n]) => ['claims: ' + k, number(n)]),
    ['stale claims', number(s.store.stale)], ['fences refused', number(s.store.fenced)],
    ['recoveries', number(s.store.recoveries)], ['claims that wait', number(s.store.queued)],
  ] : [['state', 'budgets are in this process, or nothing was asked yet']]);
  list('fallbacks', Object.entries(s.fallbacks).map(([k, n]) => [k, number(n), n > 0 ? 'warn' : '']));
  list('ring', s.ring ? [
    ...s.ring.members.map((m, i) => ['node ' + (i + 1), m]), ['fingerprint', s.ring.fingerprint],
    ['forwarded', number(s.ring.forwarded)], ['received', number(s.ring.received)],
    ...(s.ring.hot_keys || []).map((k) => ['hot', k]), ...(s.ring.hot_here || []).map((k) => ['leased hot', k]),
  ] : [['ring', 'PEERS is not set: nodes meet in the store']]);
  last = s;
}

async function poll() {
  try {
    const r = await fetch('/console/state', { cache: 'no-store' });
    show(await r.json());
  } catch (e) {
    $('verdict').textContent = 'This node does not answer';
    $('verdict').className = 'bad';
  }
  setTimeout(poll, 2000);
}

function table(head, body) {
  const t = make('table'), tr = make('tr');
  tr.append(...head.map((h) => make('th', h)));
  const thead = make('thead'), tbody = make('tbody');
  thead.append(tr);
  for (const cells of body) {
    const row = make('tr');
    row.append(...cells.map((c) => make('td', String(c))));
    tbody.append(row);
  }
  t.append(thead, tbody);
  const scroll = make('div', undefined, 'scroll');
  scroll.append(t);
  return scroll;
}

async function explain() {
  const q = new URLSearchParams({ domain: $('domain').value });
  for (const e of $('entries').value.split(',')) if (e.trim()) q.append('entry', e.trim());
  const out = $('explanation');
  try {
    const r = await (await fetch('/explain?' + q, { cache: 'no-store' })).json();
    if (r.error) { out.replaceChildren(make('p', r.error, 'bad')); return; }
    const parts = [make('p', 'The next request would get: ' + r.next + (r.reset_ns ? ' (' + duration(r.reset_ns) + ')' : ''), 'verdict')];
    parts.push(table(['Entry', 'Matched', 'Why'], r.steps.map((s) => [s.entry, s.matched || 'nothing', s.why])));
    if (r.rule) parts.push(make('p', r.domain + '.' + r.rule + ': ' + [r.limit, r.mode, r.declared].filter(Boolean).join('; ')));
    if (r.owner) parts.push(make('p', 'Its owner is ' + r.owner));
    if (r.lease) {
      const l = r.lease;
      parts.push(table(['Lease here', 'Granted', 'Spent', 'Unspent', 'Drifted', 'Fence', 'Expires in', 'Heard'],
        [['window ' + l.window, l.granted, l.spent, l.unspent, l.drifted, l.fence, duration(l.expires_ns), duration(l.heard_ns) + ' ago']]));
    }
    if (r.ledger) {
      parts.push(make('p', 'The ledger has ' + r.ledger.free + ' of ' + r.ledger.limit + ' left' + (r.ledger.relearning ? ', and is being told what it had forgotten' : '')));
      parts.push(table(['Holder', 'Fence', 'Granted', 'Spent', 'Outstanding', 'Expires in', ''], (r.ledger.holders || []).map((h) =>
        [(h.node || h.holder) + (h.here ? ' (this node)' : ''), h.fence, h.granted, h.spent, h.outstanding, duration(h.expires_ns), h.closed ? 'reclaimed' : h.expires_ns < 0 ? 'silent' : ''])));
    }
    if (r.ledger_error) parts.push(make('p', r.ledger_error, 'bad'));
    out.replaceChildren(...parts);
  } catch (e) {
    out.replaceChildren(make('p', String(e), 'bad'));
  }
}

$('explain').addEventListener('click', explain);
for (const id of ['domain', 'entries']) $(id).addEventListener('keydown', (e) => { if (e.key === 'Enter') explain(); });
const asked = new URLSearchParams(location.search);
if (asked.get('domain')) {
  $('domain').value = asked.get('domain');
  $('entries').value = asked.getAll('entry').join(', ');
  explain();
}
poll();
