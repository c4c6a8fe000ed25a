'use strict';
// Pieces of the page. Everything from the server is text: it goes into the page by
// textContent only.

const $ = (id) => document.getElementById(id);

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
  return Number.isInteger(n) ? String(n) : n.toFixed(Math.abs(n) < 1 ? 2 : 1);
}

function share(part, whole) {
  if (!whole) return '–';
  const p = 100 * part / whole;
  return (p > 0 && p < 0.1 ? '<0.1' : p.toFixed(p < 10 ? 1 : 0)) + ' %';
}

function duration(ns) {
  const s = ns / 1e9;
  if (Math.abs(s) < 1) return (s * 1000).toFixed(0) + ' ms';
  if (Math.abs(s) < 120) return s.toFixed(s < 10 ? 1 : 0) + ' s';
  if (Math.abs(s) < 7200) return (s / 60).toFixed(0) + ' min';
  if (Math.abs(s) < 172800) return (s / 3600).toFixed(1) + ' h';
  return (s / 86400).toFixed(0) + ' days';
}

// expiry is when a lease expires: one without an expiry has none at the store, and one far away at its node.
const expiry = (ns) => (ns === 0 || ns > 100 * 366 * 86400e9 ? 'with its window' : 'in ' + duration(ns));

const clock = (t) => new Date(t).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', second: '2-digit', hour12: false });

// A window at most as wide as data-cards says shows a table's lines as cards.
function fit() {
  for (const t of document.querySelectorAll('table[data-cards]')) t.classList.toggle('cards', innerWidth <= Number(t.dataset.cards));
}
addEventListener('resize', fit);
fit();

// rows shows one line for each item, under its name: a line keeps its place for as
// long as its item is there, and one that is new takes the place of one that went.
const places = new Map(); // of each table: the names, in their order
function rows(table, items, name, cells, none) {
  const t = $(table), body = t.tBodies[0], heads = [...t.tHead.rows].at(-1).cells;
  const fresh = new Map(items.map((i) => [name(i), i]));
  let order = (places.get(table) || []).map((n) => fresh.has(n) ? n : null);
  for (const n of fresh.keys()) {
    if (order.includes(n)) continue;
    const gap = order.indexOf(null);
    if (gap >= 0) order[gap] = n; else order.push(n);
  }
  order = order.filter((n) => n !== null);
  places.set(table, order);
  body.replaceChildren(...order.map((n) => {
    const tr = make('tr'), [list, className] = cells(fresh.get(n));
    if (className) tr.className = className;
    list.forEach(([content, kind], i) => {
      const td = make('td', undefined, kind);
      td.dataset.label = heads[i] ? heads[i].dataset.label || heads[i].textContent : '';
      if (content instanceof Node) td.append(content); else td.textContent = content;
      if (typeof content === 'string') td.title = content;
      tr.append(td);
    });
    return tr;
  }));
  if (!order.length && none) {
    const tr = make('tr'), td = make('td', none, 'note');
    td.colSpan = heads.length;
    tr.append(td);
    body.append(tr);
  }
}

function list(id, pairs) {
  $(id).replaceChildren(...pairs.flatMap(([k, v, className]) => [make('dt', k), make('dd', v, className)]));
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
