"""The style sheet (CSS) of the report."""

from __future__ import annotations

from typing import Final

CSS: Final = """
:root { color-scheme: light dark; --ink: #1d2430; --soft: #5b6576; --paper: #fff; --line: #dfe4ec;
  --card: #f6f8fb; --good: #1a7f4b; --bad: #c62828; --warn: #a15c00; --blue: #2862c7; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --soft: #9aa5b8; --paper: #14181f;
  --line: #2f3744; --card: #1d232d; --good: #4cc38a; --bad: #ff7b72; --warn: #e3a34b;
  --blue: #6ea8fe; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 24px 20px 60px; max-width: 880px; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 22px; margin: 0 0 12px; } h2 { font-size: 17px; margin: 34px 0 8px; }
p { margin: 6px 0; } .soft { color: var(--soft); }
code { font-size: 13px; overflow-wrap: anywhere; }
.verdict { border-left: 5px solid var(--warn); background: var(--card); padding: 10px 14px;
  font-weight: 600; overflow-wrap: anywhere; }
.verdict.v0 { border-color: var(--good); } .verdict.v1 { border-color: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(118px, 1fr)); gap: 8px;
  margin: 12px 0; padding: 0; list-style: none; }
.tiles li { background: var(--card); border-radius: 6px; padding: 8px 10px;
  border-top: 3px solid var(--line); }
.tiles b { display: block; font-size: 19px; font-variant-numeric: tabular-nums; }
.tiles span { color: var(--soft); font-size: 13px; }
.wide { overflow-x: auto; } .wide svg { display: block; width: 100%; }
svg.bar, .bar svg { display: block; width: 100%; height: 22px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
th, td { text-align: left; padding: 5px 18px 5px 0; border-bottom: 1px solid var(--line);
  vertical-align: top; white-space: nowrap; }
td.text { white-space: normal; overflow-wrap: anywhere; min-width: 110px; }
td.id { white-space: normal; overflow-wrap: anywhere; min-width: 232px; }
th { color: var(--soft); font-weight: 600; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
td code { font-size: 12.5px; }
details > summary { cursor: pointer; margin: 8px 0; }
.key { display: inline-block; width: 14px; height: 3px; vertical-align: middle; margin: 0 5px 0 0; }
.key.sent { background: var(--blue); } .key.delivered { background: var(--good); }
.key.lost { background: var(--bad); height: 10px; }
.legend span + span { margin-left: 16px; }
svg text { font: 12px system-ui, sans-serif; fill: var(--soft); }
@media (max-width: 600px) { svg text { font-size: 20px; } }
.rule { stroke: var(--line); } .area { fill: var(--blue); opacity: .12; }
.line { fill: none; stroke-width: 1.6; } .line.sent { stroke: var(--blue); }
.line.delivered { stroke: var(--good); } rect.lost { fill: var(--bad); }
.s-delivered { fill: var(--good); border-color: var(--good) !important; }
.s-waiting, .s-in_flight, .s-pending, .s-removed { fill: var(--blue);
  border-color: var(--blue) !important; }
.s-in_flight { opacity: .8; } .tiles .s-in_flight { opacity: 1; }
.s-dead, .s-unknown, .s-unsent { fill: var(--warn); border-color: var(--warn) !important; }
.s-lost, .s-duplicated, .s-gaps { fill: var(--bad); border-color: var(--bad) !important; }
"""
