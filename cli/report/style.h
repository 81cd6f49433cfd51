// The style sheet of the HTML report, light, dark and on paper, and its script.
#pragma once

namespace tandem::tools {

constexpr const char* kReportStyle = R"css(
:root { color-scheme: light dark; --back: #ffffff; --text: #1b1f24; --soft: #5c6570; --line: #d5dae0;
  --grid: #eceff2; --accent: #1a64c8; --floor: #c2410c; --card: #f6f8fa; --p0: #5f6b78; --p1: #d98a00; --p2: #00866a;
  --p3: #b0508a; --p4: #7c3aed; --p5: #8a5a12; --p6: #0d8aa5; --p7: #5b8c00; }
@media (prefers-color-scheme: dark) { :root { --back: #14171b; --text: #e4e8ec; --soft: #9aa5b1;
  --line: #3a424b; --grid: #242a31; --accent: #6aa9ff; --floor: #fb923c; --card: #1c2127; --p0: #9aa5b1; --p1: #f2b134;
  --p2: #34d399; --p3: #f0a3cf; --p4: #b79bff; --p5: #d6a566; --p6: #4fd1e8; --p7: #a8d84e; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.5rem 4rem; max-width: 1180px; background: var(--back);
  color: var(--text); font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; }
h2 { font-size: 1.3rem; margin: 2.6rem 0 .6rem; padding-bottom: .2rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.6rem 0 .4rem; }
h4 { font-size: .9rem; margin: 1rem 0 .2rem; }
p { max-width: 60rem; margin: .4rem 0; }
a { color: var(--accent); }
.soft { color: var(--soft); }
nav ul, .legend, .facts { display: flex; flex-wrap: wrap; gap: .3rem 1rem; margin: .6rem 0; padding: 0; list-style: none; }
.facts li { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: .3rem .7rem; }
.facts b { display: block; font-variant-numeric: tabular-nums; }
.facts span { color: var(--soft); font-size: .8rem; }
.legend { font-size: .8rem; }
.legend svg { display: inline-block; width: 22px; height: 12px; margin: 0 .4rem 0 0; vertical-align: -1px; }
button { font: inherit; color: var(--accent); background: none; border: 0; padding: 0; cursor: pointer;
  text-decoration: underline; }
details { margin: .5rem 0; }
details > :not(summary) { margin-left: 1rem; }
summary { cursor: pointer; color: var(--accent); }
/* Shadows at the sides that hide more of a table, where scrollbars are not drawn. */
.wide { overflow-x: auto; margin: .6rem 0; scrollbar-width: thin; background:
  linear-gradient(to right, var(--back) 30%, transparent) left / 40px 100%,
  linear-gradient(to left, var(--back) 30%, transparent) right / 40px 100%,
  linear-gradient(to right, var(--line), transparent) left / 12px 100%,
  linear-gradient(to left, var(--line), transparent) right / 12px 100%;
  background-repeat: no-repeat; background-attachment: local, local, scroll, scroll; }
table { border-collapse: collapse; font-size: .82rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .55rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
th:first-child, td:first-child { position: sticky; left: 0; background: var(--back); }
th.number { white-space: normal; min-width: 4rem; }
td.long { white-space: normal; min-width: 16rem; overflow-wrap: anywhere; }
.number { text-align: right; }
.sorted th { cursor: pointer; }
.sorted th[aria-sort=ascending]::after { content: " \25b4"; }
.sorted th[aria-sort=descending]::after { content: " \25be"; }
.overview svg { width: 230px; margin: 0; }
.list { font-size: .85rem; padding-left: 1.2rem; overflow-wrap: anywhere; }
code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: .92em; }
figure { margin: 0; }
svg { display: block; width: 100%; height: auto; margin: .2rem 0; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 440px), 1fr)); gap: .4rem 2rem; }
.small { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 260px), 1fr)); gap: .4rem 1rem; }
svg .label, svg .note { paint-order: stroke; stroke: var(--back); stroke-width: 3px; }
svg text { font-family: system-ui, "DejaVu Sans", sans-serif; font-size: 11px; fill: var(--text); }
svg .tick, svg .title, svg .note { fill: var(--soft); }
svg .case { font-size: 12px; font-weight: 600; }
svg .middle { text-anchor: middle; } svg .end { text-anchor: end; } svg .start { text-anchor: start; }
svg .grid { stroke: var(--grid); } svg .axis { stroke: var(--line); } svg .one { stroke: var(--soft); }
svg .roof { fill: none; stroke: var(--text); stroke-width: 1; }
svg .series { fill: none; stroke: var(--accent); stroke-width: 2; }
svg .line { fill: none; stroke-width: 1; }
svg .point { fill: var(--accent); stroke: var(--back); }
svg .dot { fill: var(--accent); fill-opacity: .45; } svg .mean, svg .bar { fill: var(--accent); }
svg .mark { stroke: var(--back); }
svg .mark.p0 { fill: var(--p0); } svg .mark.p1 { fill: var(--p1); } svg .mark.p2 { fill: var(--p2); }
svg .mark.p3 { fill: var(--p3); } svg .mark.p4 { fill: var(--p4); } svg .mark.p5 { fill: var(--p5); }
svg .mark.p6 { fill: var(--p6); } svg .mark.p7 { fill: var(--p7); }
svg .line.p0 { stroke: var(--p0); } svg .line.p1 { stroke: var(--p1); } svg .line.p2 { stroke: var(--p2); }
svg .line.p3 { stroke: var(--p3); } svg .line.p4 { stroke: var(--p4); } svg .line.p5 { stroke: var(--p5); }
svg .line.p6 { stroke: var(--p6); } svg .line.p7 { stroke: var(--p7); }
svg .floor { fill: none; stroke: var(--floor); stroke-width: 2; }
svg .launch { stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 3 3; }
@media (max-width: 600px) {
  body { padding: 1rem .8rem 3rem; }
  th:first-child, td:first-child { max-width: 8rem; white-space: normal; overflow-wrap: anywhere; }
  .overview td { white-space: normal; } .spare { display: none; }
  details > :not(summary) { margin-left: 0; }
}
@media print {
  :root { color-scheme: light; --back: #ffffff; --text: #000000; --soft: #444444; --line: #bbbbbb; --grid: #e6e6e6;
    --accent: #1a64c8; --floor: #c2410c; --card: #ffffff; --p0: #5f6b78; --p1: #d98a00; --p2: #00866a; --p3: #b0508a;
    --p4: #7c3aed; --p5: #8a5a12; --p6: #0d8aa5; --p7: #5b8c00; }
  @page { size: A4 landscape; margin: 12mm; }
  body { padding: 0; max-width: none; font-size: 10pt; }
  nav, details:not([open]) { display: none; }
  h1 { font-size: 14pt; } h2 { font-size: 12pt; margin: .8rem 0 .2rem; } h3, .facts, .legend { margin: .3rem 0; }
  p { font-size: 8pt; max-width: none; }
  .facts li { padding: 0 .4rem; font-size: 7pt; } .facts b { display: inline; margin-right: .4rem; }
  .charts { grid-template-columns: repeat(3, 1fr); gap: 0 1.5rem; break-inside: avoid; }
  .small { grid-template-columns: repeat(5, 1fr); gap: 0 .8rem; }
  svg text { font-size: 12px; } svg .case { font-size: 13px; }
  .overview th, .overview td { padding: 0 .3rem; line-height: 1.2; } .overview svg { height: 9pt; }
  h2, h3, h4, .legend { break-after: avoid; }
  figure, .small, .legend, svg, tr, .facts li { break-inside: avoid; }
  thead { display: table-header-group; }
  table { font-size: 7pt; } th, td { padding: .1rem .3rem; } th.number { min-width: 0; }
  th:first-child, td:first-child { position: static; }
  td.long { min-width: 9rem; }
  .wide { overflow: visible; background: none; }
}
)css";

/// A click on a column's title sorts by it, by ratio where cells have one in parentheses; a link
/// unfolds what it leads to. Without the script all is there, in the order of the cases.
constexpr const char* kReportScript = R"js(
const units = { kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12 };
const number = text => {
  const ratio = text.match(/\(([\d.]+)x\)/);
  return parseFloat(ratio ? ratio[1] : text) * (units[text.slice(-2)] || 1);
};
for (const th of document.querySelectorAll('.sorted th')) {
  const sort = () => {
    const table = th.closest('table'), column = th.cellIndex, numeric = th.className === 'number';
    const sign = th.ariaSort === (numeric ? 'descending' : 'ascending') ? -1 : 1;
    const compare = (a, b) => {
      a = a.cells[column].textContent, b = b.cells[column].textContent;
      if (!numeric) return sign * a.localeCompare(b, 'en', { numeric: true });
      a = number(a), b = number(b);
      return isNaN(a) - isNaN(b) || sign * (b - a) || 0;
    };
    table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
    for (const other of th.parentNode.cells) other.ariaSort = null;
    th.ariaSort = (sign > 0) === numeric ? 'descending' : 'ascending';
  };
  th.tabIndex = 0;
  th.onclick = sort;
  th.onkeydown = event => { if (event.key === 'Enter') sort(); };
}
const unfold = () => {
  let at = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (const target = at; at; at = at.parentElement) {
    if (at.tagName === 'DETAILS') at.open = true;
    if (!at.parentElement) target.scrollIntoView();
  }
};
addEventListener('hashchange', unfold);
unfold();
const nav = document.querySelector('nav ul');
if (nav) {
  const button = document.createElement('button'), item = document.createElement('li');
  button.textContent = 'unfold all';
  button.onclick = () => {
    const all = [...document.querySelectorAll('details')], open = all.some(one => !one.open);
    for (const one of all) one.open = open;
    button.textContent = open ? 'fold all' : 'unfold all';
  };
  item.append(button);
  nav.append(item);
}
)js";

}  // namespace tandem::tools
