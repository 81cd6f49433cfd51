// The style sheet of the HTML report: light, dark, and on paper.
#pragma once

namespace tandem::tools {

constexpr const char* kReportStyle = R"css(
:root { color-scheme: light dark; --back: #ffffff; --text: #1b1f24; --soft: #5c6570; --line: #d5dae0;
  --grid: #eceff2; --accent: #1a64c8; --peer: #a9b4c0; --floor: #c2410c; --card: #f6f8fa; }
@media (prefers-color-scheme: dark) { :root { --back: #14171b; --text: #e4e8ec; --soft: #9aa5b1;
  --line: #3a424b; --grid: #242a31; --accent: #6aa9ff; --peer: #566270; --floor: #fb923c; --card: #1c2127; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.5rem 4rem; max-width: 1180px; background: var(--back);
  color: var(--text); font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; }
h2 { font-size: 1.3rem; margin: 2.6rem 0 .6rem; padding-bottom: .2rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.8rem 0 .4rem; }
p { max-width: 52rem; margin: .4rem 0; }
.soft { color: var(--soft); }
.facts { display: flex; flex-wrap: wrap; gap: .6rem; margin: .8rem 0; padding: 0; list-style: none; }
.facts li { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: .4rem .8rem; }
.facts b { display: block; font-size: 1.05rem; font-variant-numeric: tabular-nums; }
.facts span { color: var(--soft); font-size: .8rem; }
.wide { overflow-x: auto; margin: .6rem 0; }
table { border-collapse: collapse; font-size: .82rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .55rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
th.number { min-width: 4rem; }
td { white-space: nowrap; }
.name { white-space: normal; }
td.long { white-space: normal; min-width: 16rem; }
.number { text-align: right; }
.list { font-size: .85rem; padding-left: 1.2rem; overflow-wrap: anywhere; }
code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: .92em; }
svg { display: block; width: 100%; height: auto; margin: .4rem 0; }
.small { display: grid; grid-template-columns: repeat(auto-fill, minmax(350px, 1fr)); gap: .6rem 1rem; }
svg .label, svg .note { paint-order: stroke; stroke: var(--back); stroke-width: 3px; }
svg text { font-family: system-ui, "DejaVu Sans", sans-serif; font-size: 11px; fill: var(--text); }
svg .tick, svg .title, svg .note { fill: var(--soft); }
svg .case { font-size: 12px; font-weight: 600; }
svg .middle { text-anchor: middle; } svg .end { text-anchor: end; } svg .start { text-anchor: start; }
svg .grid { stroke: var(--grid); } svg .axis { stroke: var(--line); }
svg .roof { fill: none; stroke: var(--text); stroke-width: 1.5; }
svg .series { fill: none; stroke: var(--accent); stroke-width: 1.5; }
svg .leader { fill: none; stroke: var(--line); }
svg .point { fill: var(--accent); stroke: var(--back); }
svg .other { fill: var(--back); stroke: var(--accent); stroke-width: 1.5; }
svg .floor-point { fill: var(--floor); }
svg .bar { fill: var(--accent); } svg .peer { fill: var(--peer); }
svg .floor { stroke: var(--floor); stroke-width: 1.5; stroke-dasharray: 4 3; }
@media print {
  :root { color-scheme: light; --back: #ffffff; --text: #000000; --soft: #444444; --line: #bbbbbb; --grid: #e6e6e6;
    --accent: #1a64c8; --peer: #a9b4c0; --floor: #c2410c; --card: #ffffff; }
  @page { size: A4 landscape; margin: 12mm; }
  body { padding: 0; max-width: none; font-size: 10pt; }
  h2, h3 { break-after: avoid; }
  svg, tr, .facts li { break-inside: avoid; }
  thead { display: table-header-group; }
  table { font-size: 7pt; } th, td { padding: .12rem .3rem; } th.number { min-width: 0; }
  td.long { min-width: 9rem; }
  .wide { overflow: visible; }
}
)css";

}  // namespace tandem::tools
