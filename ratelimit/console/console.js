'use strict';
// The page: what the node says, every two seconds, and explanations.

let heard = null; // when the node last answered, in ms
let redacted = false; // values in names of keys are hidden

// account is the name of a key in the ledger; a click explains it.
function account(name) {
  const parts = name.split('|');
  if (redacted || parts.length < 3 || name.startsWith('#') || name.includes('~') || name.includes(',')) return name;
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

const ruleName = (r) => r.domain + '.' + r.rule;
const counted = (map, least) => Object.entries(map || {}).filter(([, n]) => n > least).map(([k, n]) => k.replaceAll('_', ' ') + ' ' + number(n)).join(', ');

// sources says by what a rule's decisions were made, the largest part first.
const sources = (r) => Object.entries(r.sources || {}).filter(([, n]) => n > 0).sort((a, b) => b[1] - a[1]).map(([k, n]) => k + ' ' + share(n, r.decisions)).join(', ');

// reasons says why decisions were made without the store.
const why = {
  deadline: 'its reply was late', error: 'it returned an error', breaker: 'the breaker was open',
  queue_full: 'too many claims waited', table_full: 'too many keys', peer: 'the key\'s owner did not answer',
};
const reasons = (map) => Object.entries(map || {}).filter(([, n]) => n > 0).map(([k, n]) => number(n) + ': ' + (why[k] || k)).join('; ');

// What claims are for.
const claimed = {
  waiting: 'for requests that wait', renewal: 'to renew, or to report', return: 'to give back',
  final: 'to settle a window',
};

function showProblems(list) {
  if (!list || !list.length) {
    $('problems').className = 'good';
    $('problems').replaceChildren(make('p', 'No problems: limits hold as declared', 'verdict'));
    return;
  }
  $('problems').className = list[0].severity;
  $('problems').replaceChildren(...list.map((p) => {
    const e = make('div', undefined, 'problem ' + p.severity);
    const what = make('p', p.what, 'verdict');
    if (p.runbook) {
      const link = make('a', 'Runbook');
      link.href = 'https://github.com/sluice-gate/sluice/blob/main/docs/reference/runbooks.md#' + p.runbook;
      what.append(' ', link);
    }
    e.append(what);
    if (p.detail) e.append(make('p', p.detail, 'note'));
    return e;
  }));
}

function showWho(s) {
  const c = s.config || {}, up = (new Date(s.now) - new Date(s.started)) * 1e6;
  $('name').textContent = s.name || '';
  document.title = 'Sluice ' + (s.name || '');
  list('who', [
    ['version', s.version], ['up', duration(up)],
    ['rules', s.rule_count + (c.fingerprint ? ', ' + c.fingerprint.slice(0, 12) : '') + (c.loaded_at ? ', since ' + clock(c.loaded_at) : '')],
    ['from', c.source || '–'],
  ]);
}

// worst is the rule whose worst key used most of its allowance lately; undefined: no rule has one.
const worst = (rules) => rules.filter((r) => r.drift_share > 0).sort((a, b) => b.worst_key_over / b.drift_share - a.worst_key_over / a.drift_share)[0];

// limitsCard says whether limits hold: of this node, and of the worst node of the fleet.
function limitsCard(s) {
  const r = worst(s.rules || []), fleet = Math.max(0, ...(s.nodes || []).map((n) => (n.rates && n.rates.worst_percent) || 0));
  const others = fleet > 0 ? '; worst node of the fleet: ' + number(Math.round(fleet)) + ' % of its allowance' : '';
  if (r && r.worst_key_over > r.drift_share) return [r.worst_key_over + ' of ' + r.drift_share + ' allowed', 'A bound is broken: ' + ruleName(r), 'bad'];
  if (s.recent.alone > 0.01 * (s.recent.passed + s.recent.refused)) return ['By policy', 'on_store_failure decides a part of the requests now', 'warn'];
  if (r && r.worst_key_over > 0) return [r.worst_key_over + ' of ' + r.drift_share + ' allowed', 'over the limit: worst key of ' + ruleName(r) + ', at this node' + others, ''];
  return ['Limits held', 'no key went over its limit in the last 30 s, at this node' + others, 'good'];
}

function storeCard(s) {
  const t = s.store;
  if (!t.used) return ['No store', 'this node counts in its memory', ''];
  if (t.breaker_open) return ['No reply', 'from the store (' + t.address + '), for ' + t.sync_age_seconds.toFixed(0) + ' s', 'bad'];
  const mean = s.recent.trip_seconds, least = t.least_deadline_seconds;
  const of = least > 0 ? ' of ' + number(least * 1000) + ' ms (the shortest store_deadline)' : '';
  return [mean > 0 ? (mean * 1000).toFixed(2) + ' ms' : '–', 'for a reply of the store, in the last ten seconds' + (s.recent.fastest_trip_seconds > 0 ? ', at least ' + (s.recent.fastest_trip_seconds * 1000).toFixed(2) + ' ms' : '') + of + '; ' + number(s.recent.trips) + ' round trips/s', mean > least / 2 && least > 0 ? 'warn' : ''];
}

// fleetRates are the rates of all nodes that respond, and the worst p99; those of this node, if it is alone.
function fleetRates(s) {
  const nodes = s.nodes_old ? [] : (s.nodes || []).filter((n) => !n.silent && n.rates);
  if (nodes.length < 2) return [s.recent, 'at this node', 'at this node'];
  const sum = (name) => nodes.reduce((t, n) => t + (n.rates[name] || 0), 0);
  const all = { passed: sum('passed'), refused: sum('refused'), failed: sum('failed') };
  all.p99_seconds = Math.max(...nodes.map((n) => n.rates.p99_seconds || 0));
  return [all, 'of ' + nodes.length + ' nodes', 'at the slowest of ' + nodes.length + ' nodes'];
}

function showCards(s) {
  const r = s.recent, [f, where, slowest] = fleetRates(s), calls = f.passed + f.refused + f.failed;
  const cards = [
    limitsCard(s),
    [share(f.refused, calls) === '–' ? '0 %' : share(f.refused, calls), 'refused, ' + number(f.refused) + ' of ' + number(calls) + ' calls/s ' + where, ''],
    [f.p99_seconds > 0 ? number(f.p99_seconds * 1e3) + ' ms' : '–', 'for the slowest in a hundred calls (p99), ' + slowest, f.p99_seconds > 0.01 ? 'warn' : ''],
    storeCard(s),
  ];
  $('cards').replaceChildren(...cards.map(([v, k, className]) => {
    const c = make('div', undefined, 'card ' + (className || ''));
    c.append(make('b', v), make('span', k));
    return c;
  }));
  list('node', [
    ['keys tracked', number(s.leases) + ', ' + share(s.leases, s.max_keys) + ' of ' + number(s.max_keys)],
    ...(s.seat_wanted ? [['drift seat', s.seat < 0 ? 'none: rules of mode approx lease' : String(s.seat), s.seat < 0 ? 'warn' : '']] : []),
    ['calls without a decision/s', number(r.failed), r.failed > 0 ? 'bad' : ''], ['decided without the store/s', number(r.alone), r.alone > 0 ? 'warn' : ''],
  ]);
}

// seldom is a figure that is 0 as a rule: cards leave it out then.
const seldom = (n, kind) => [number(n), 'n ' + (n > 0 ? kind || '' : 'seldom')];

// highest is the most that one key got in a window, beside its limit and the declared worst case, as a bar. Both are
// since the start: once on_store_failure has decided, the worst case is that of an outage, which open has not.
function highest(r) {
  if (r.limit === 'unlimited') return ['–', 'n'];
  const outage = Object.values(r.fallbacks).some((n) => n > 0);
  const worst = outage ? r.declared_in_outage || r.highest_window : r.limit_tokens + r.declared;
  const over = r.highest_window > r.limit_tokens, meter = document.createElement('meter');
  Object.assign(meter, { min: 0, max: Math.max(worst, r.highest_window, 1), low: r.limit_tokens, high: worst, optimum: 0, value: r.highest_window });
  const cell = make('span', number(r.highest_window) + ' of ' + number(r.limit_tokens) + (worst > r.limit_tokens || over ? ', declared ' + (!outage ? number(worst) : 'in an outage ' + (r.declared_in_outage > 0 ? number(r.declared_in_outage) : 'all demand')) : '') + ' ');
  cell.append(meter);
  return [cell, 'n ' + (r.windows_beyond_bound > 0 ? 'bad' : over ? 'warn' : '')];
}

// On a phone, what is seldom needed is folded.
const phone = matchMedia('(max-width: 640px)');
const fold = () => document.querySelectorAll('details.section').forEach((d) => { d.open = !phone.matches; });
phone.addEventListener('change', fold);
fold();

let before = null;
function showRules(s) {
  const seconds = before ? (new Date(s.now) - new Date(before.now)) / 1000 : 0;
  const old = new Map((before ? before.rules : []).map((r) => [[r.domain, r.rule, r.mode].join('\n'), r]));
  const sorted = (s.rules || []).toSorted((a, b) => ruleName(a) < ruleName(b) ? -1 : 1);
  const id = (r) => [r.domain, r.rule, r.mode].join('\n');
  rows('rules', sorted, id, (r) => {
    const o = old.get(id(r)), rate = (now, then) => o && seconds > 0 ? number(Math.max(0, now - then) / seconds) : '–';
    const name = make('a', ruleName(r));
    name.href = '#' + encodeURIComponent(chartOf(id(r)));
    return [[
      [name], [r.mode], [r.limit], highest(r),
      [rate(r.decisions - r.denied, o ? o.decisions - o.denied : 0), 'n'], [rate(r.denied, o ? o.denied : 0), 'n'],
      [sources(r), 'long'],
    ], r.windows_beyond_bound > 0 ? 'wrong' : ''];
  }, 'There are no rules.');
  $('without').hidden = !sorted.some((r) => r.sources && r.sources.fallback > 0);
  rows('alone', sorted.filter((r) => r.sources && r.sources.fallback > 0), id, (r) => [[
    [ruleName(r)], [r.on_store_failure], [number(r.sources.fallback), 'n'], [reasons(r.fallbacks), 'long'],
  ]], 'No decisions, since this node started.');
  before = s;
}

function showFleet(s) {
  const nodes = s.nodes || [], rates = (n) => n.rates || {};
  rows('nodes', nodes, (n) => n.name, (n) => {
    const link = make('a', n.debug);
    link.href = location.protocol + '//' + n.debug + '/console';
    const cell = make('span');
    cell.append(n.here ? make('b', n.debug) : link, n.here ? ' (this node)' : '', n.region ? ', ' + n.region : '');
    const gone = n.silent || s.nodes_old;
    return [[
      [cell], [n.version], [n.rules ? n.rules.slice(0, 12) : '–'], [duration((new Date(s.now) - new Date(n.started)) * 1e6)],
      [number(rates(n).passed), 'n'], [number(rates(n).refused), 'n'], seldom(rates(n).failed), seldom(rates(n).alone),
      [n.rates && n.rates.worst_percent !== undefined ? number(Math.round(n.rates.worst_percent)) + ' %' : '–', 'n'],
      seldom(n.problems, 'warn'), [(n.silent ? 'SILENT, last seen ' : '') + duration(n.seen_seconds * 1e9) + ' ago', n.silent ? 'bad late' : ''],
    ], gone ? 'gone' : ''];
  }, 'Without a shared store, nodes do not register.');
  const alive = nodes.filter((n) => !n.silent), total = (name) => number(alive.reduce((t, n) => t + (rates(n)[name] || 0), 0));
  $('fleetnote').textContent = !nodes.length ? 'Nodes that share the store.' :
    (s.nodes_old ? 'As of ' + s.nodes_age_seconds.toFixed(0) + ' s ago: the store, where nodes meet, does not answer. ' : '') +
    alive.length + ' of ' + nodes.length + ' nodes respond; together they pass ' + total('passed') + ' and refuse ' + total('refused') + ' calls a second, and make ' +
    total('alone') + ' decisions a second without the store.';
}

function showEnvoys(s) {
  const e = s.envoys, held = (e && e.held) || [];
  $('envoys').hidden = !e || !e.streams;
  if ($('envoys').hidden) return;
  $('envoysnote').textContent = number(e.streams) + ' streams hold ' + number(e.leases) + ' leases; ' + number(e.unproven) +
    ' tokens are charged and neither in use nor proven to be spent or dead.' +
    (e.leases > held.length ? ' The largest ' + held.length + ' are shown, ' + number(e.leases - held.length) + ' more are not.' : '');
  rows('held', held, (h) => h.name + '\n' + h.account, (h) => [[
    [h.name], [account(h.account)], [number(h.per_second), 'n'], [number(h.charged), 'n'], [number(h.in_use), 'n'], [number(h.unproven), 'n'],
  ]], 'No Envoy holds a lease now.');
}

function show(s) {
  document.body.className = '';
  heard = Date.now();
  showProblems(s.problems);
  showWho(s);
  showCards(s);
  showRules(s);
  showFleet(s);
  redacted = s.redacted;
  $('redacted').hidden = !redacted;
  rows('hottest', s.hottest || [], (k) => k.account + '\n' + k.rule, (k) => [[
    [account(k.account)], [k.rule], [k.per_second ? number(k.per_second) : '–', 'n'],
    [(k.spent > k.limit ? 'all of ' + number(k.limit) + ', ' + 'debt ' + number(k.spent - k.limit) : number(k.spent) + ' of ' + number(k.limit) + ' (' + share(k.spent, k.limit) + ')') + (k.overridden ? ', by an override' : ''), 'n'], [number(Math.max(0, k.unspent)), 'n'],
  ]], 'No key had requests lately.');
  showEnvoys(s);
  list('store', s.store.used ? [
    ['state', s.store.breaker_open ? 'does not answer' : 'answers', s.store.breaker_open ? 'bad' : 'good'],
    ['address', s.store.address || '–'],
    ['last answer', s.store.sync_age_seconds.toFixed(1) + ' s ago'],
    ['last error', s.store.last_error ? clock(Date.parse(s.store.last_error_at)) + ' ' + s.store.last_error : 'none'],
    ['mean round trip, since the start', (s.store.mean_seconds * 1000).toFixed(2) + ' ms'],
    ['round trips', number(s.store.round_trips) + ', failed ' + number(s.store.failed)],
    ...Object.entries(s.claims).map(([k, n]) => ['claims ' + (claimed[k] || k), number(n)]),
    ['claims that wait now', number(s.store.queued)], ['claims that came too late', number(s.store.stale)],
    ['losses of its data, restored', number(s.store.recoveries)],
  ] : [['state', 'none, or not contacted yet: accounts are in this process']]);
  list('ring', s.ring ? [
    ...s.ring.members.map((m, i) => ['node ' + (i + 1), m]), ['fingerprint', s.ring.fingerprint],
    ['forwarded', number(s.ring.forwarded)], ['received', number(s.ring.received)],
    ...(s.ring.hot_keys || []).map((k) => ['hot', k]), ...(s.ring.hot_here || []).map((k) => ['leased hot', k]),
  ] : [['members', 'none: PEERS is not set']]);
}

async function poll() {
  let s = null;
  try {
    const r = await fetch('/console/state', { cache: 'no-store', signal: AbortSignal.timeout(3000) });
    s = await r.json();
    await remember();
  } catch {
    s = null;
  }
  if (s) {
    show(s);
    drawCharts(s.rules || []);
  } else {
    // What is on the page is of then, and not of now.
    document.body.className = 'stale';
    showProblems([{ severity: 'bad', what: 'This node does not answer', detail: heard ? 'Last seen at ' + clock(heard) + ', ' + Math.round((Date.now() - heard) / 1000) + ' s ago. It has ended, hangs, or cannot be reached from here. The figures below are of that time.' : 'No answer yet.' }]);
  }
  setTimeout(poll, 2000);
}

async function explain() {
  const q = new URLSearchParams({ domain: $('domain').value });
  for (const e of $('entries').value.split(',')) if (e.trim()) q.append('entry', e.trim());
  const out = $('explanation');
  try {
    const r = await (await fetch('/explain?' + q, { cache: 'no-store' })).json();
    if (r.error) { out.replaceChildren(make('p', r.error, 'bad')); return; }
    const parts = r.trouble ? [make('p', r.trouble, 'bad')] : [];
    parts.push(make('p', 'Next request: ' + r.next + (r.reset_ns ? ' (' + duration(r.reset_ns) + ')' : ''), 'verdict'));
    parts.push(table(['Entry', 'Matched', 'Why'], r.steps.map((s) => [s.entry, s.matched || 'nothing', s.why])));
    if (r.rule) parts.push(make('p', r.domain + '.' + r.rule + ': ' + [r.limit + (r.limit_from === 'override' ? ' by an override' + (r.override_expires ? ' until ' + r.override_expires : '') + ', instead of ' + r.rule_limit : ''), r.mode, r.declared].filter(Boolean).join('; ')));
    if (r.holds) {
      parts.push(make('p', 'Hold ' + r.hold.hold + ': the next request holds ' + r.holds.next));
      parts.push(make('p', 'All keys, at this node: ' + r.holds.requests + ' requests held ' + r.holds.tokens + ' tokens; holds of ' + r.holds.settled_tokens +
        ' tokens were settled and cost ' + r.holds.cost_tokens));
    }
    if (r.owner) parts.push(make('p', 'Its owner is ' + r.owner));
    if (r.lease) {
      const l = r.lease;
      parts.push(table(['Lease here', 'Granted', 'Spent', 'Unspent', 'Drifted', 'Expires', 'Heard'],
        [['window ' + l.window, l.granted, l.spent, l.unspent, l.drifted, expiry(l.expires_ns), duration(l.heard_ns) + ' ago']]));
    }
    if (r.ledger) {
      parts.push(make('p', 'The store has ' + Math.max(0, r.ledger.free) + ' of ' + r.ledger.limit + ' left' + (r.ledger.free < 0 ? ', and a debt of ' + -r.ledger.free : '')));
      parts.push(table(['Holder', 'Fence', 'Granted', 'Spent', 'Outstanding'], (r.ledger.holders || []).map((h) =>
        [(h.node || h.holder) + (h.here ? ' (this node)' : ''), h.fence, h.granted, h.spent, h.outstanding])));
    }
    if (r.rlqs && r.envoys_in_all) parts.push(make('p', 'Assignment of Envoys over RLQS: ' + r.rlqs));
    if (r.envoys_in_all) {
      parts.push(make('p', number(r.envoys_in_all) + ' Envoys hold leases of this node' + (r.envoys_in_all > r.envoys.length ? '; the busiest ' + r.envoys.length + ':' : ':')));
      parts.push(table(['Envoy', 'Requests/s', 'Charged in its window', 'In use, at most', 'Not proven'], r.envoys.map((h) => [h.name, number(h.per_second), h.charged, h.in_use, h.unproven])));
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
