#include <fmt/format.h>

#include "cuttle/version.hpp"
#include "report/html.hpp"

namespace cuttle::report {
namespace {

constexpr std::string_view kStyle = R"css(
:root {
  color-scheme: light dark;
  --ground: #f6f7f9; --card: #ffffff; --ink: #1b2130; --muted: #667085; --rule: #e4e7ec;
  --train: #2563eb; --test: #e2730b; --speed: #0f9d76; --rate: #7c4ddb;
  --right: 37, 99, 235; --wrong: 220, 38, 38; --strong: #ffffff;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #10131a; --card: #181c25; --ink: #e6e9ef; --muted: #8f98aa; --rule: #2a303c;
    --train: #6ea0ff; --test: #ffa24d; --speed: #3ecfa3; --rate: #b397ff;
    --right: 80, 135, 255; --wrong: 248, 90, 90;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
  font-variant-numeric: tabular-nums; }
main { max-width: 1080px; margin: 0 auto; padding: 40px 24px 56px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 4px; letter-spacing: -.015em; }
h2 { font-size: 17px; margin: 40px 0 4px; letter-spacing: -.005em; }
p.note { color: var(--muted); margin: 0 0 14px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 12px; margin: 24px 0 28px; }
.tile, .chart, .panel { background: var(--card); border: 1px solid var(--rule); border-radius: 12px; }
.tile { padding: 14px 16px; }
.tile b { display: block; font-size: 23px; font-weight: 650; letter-spacing: -.02em; }
.tile span { color: var(--muted); font-size: 13px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(460px, 100%), 1fr)); gap: 16px; }
.chart { margin: 0; padding: 14px 14px 8px; }
.chart figcaption { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 4px 16px; padding: 0 6px 6px; }
.chart figcaption b { font-weight: 600; }
.chart svg { display: block; width: 100%; height: auto; }
.key { color: var(--muted); font-size: 13px; margin-left: 14px; white-space: nowrap; }
.key::before { content: ""; display: inline-block; width: 14px; height: 3px; border-radius: 2px; margin-right: 6px;
  vertical-align: middle; background: var(--c); }
.train { --c: var(--train); } .test { --c: var(--test); } .speed { --c: var(--speed); } .rate { --c: var(--rate); }
.grid { stroke: var(--rule); } .axis { stroke: var(--muted); opacity: .6; }
.tick, .label { fill: var(--muted); font-size: 12.5px; }
.line { fill: none; stroke: var(--c); stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.line.faint { stroke-width: 1; opacity: .28; }
.dot { fill: var(--c); stroke: var(--card); stroke-width: 1.5; }
.spot { fill: transparent; } .spot:hover { fill: var(--c); }
.panel { padding: 16px; overflow-x: auto; }
table { border-collapse: separate; border-spacing: 2px; }
.confusion { margin: 0 auto; }
.confusion td, .confusion th { height: 34px; min-width: 44px; padding: 0 6px; text-align: center; font-size: 13px;
  border-radius: 5px; font-weight: 400; }
.confusion th { color: var(--muted); }
.confusion th:first-child { text-align: right; white-space: nowrap; }
.confusion td.right { background: rgba(var(--right), var(--v)); }
.confusion td.wrong { background: rgba(var(--wrong), var(--v)); }
.confusion td.strong { color: var(--strong); font-weight: 600; }
.confusion td.none { color: var(--muted); opacity: .35; }
.mistakes { display: grid; grid-template-columns: repeat(auto-fill, minmax(104px, 1fr)); gap: 12px; }
.mistakes figure { margin: 0; background: var(--card); border: 1px solid var(--rule); border-radius: 10px;
  padding: 8px; text-align: center; }
.mistakes img { width: 100%; aspect-ratio: 1; border-radius: 6px; image-rendering: pixelated; display: block; }
.mistakes figcaption { font-size: 13px; padding-top: 6px; line-height: 1.35; }
.mistakes figcaption span { color: var(--muted); display: block; font-size: 12px; }
.good { color: rgb(var(--right)); } .bad { color: rgb(var(--wrong)); }
.settings { columns: 3 230px; column-gap: 32px; margin: 0; }
.settings div { display: flex; justify-content: space-between; gap: 16px; break-inside: avoid; padding: 4px 0;
  border-bottom: 1px solid var(--rule); }
.settings dt { color: var(--muted); } .settings dd { margin: 0; text-align: right; overflow-wrap: anywhere; }
.rows { width: 100%; border-spacing: 0; font-size: 14px; }
.rows th, .rows td { text-align: right; padding: 5px 8px; border-bottom: 1px solid var(--rule); white-space: nowrap; }
.rows th { color: var(--muted); font-weight: 500; }
footer { color: var(--muted); font-size: 13px; margin-top: 40px; }
@media print { body { background: none; } .tile, .chart, .panel { break-inside: avoid; } }
)css";

}  // namespace

std::string page(std::string_view title, std::string_view body) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{}</title>\n<style>{}</style>\n"
      "</head>\n<body>\n<main>\n{}\n<footer>Written by cuttle {}. This page needs no "
      "network.</footer>\n</main>\n</body>\n"
      "</html>\n",
      escape(title), kStyle, body, kVersion);
}

}  // namespace cuttle::report
