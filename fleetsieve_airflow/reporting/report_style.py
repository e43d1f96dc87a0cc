"""The style sheet of a report: dark on white on screen and on paper, no wider than 1080 pixels."""

from __future__ import annotations

from typing import Final

STYLE: Final = """\
:root{color-scheme:light}
*{box-sizing:border-box;-webkit-print-color-adjust:exact;print-color-adjust:exact}
html{background:#fff}
body{font:14px/1.45 system-ui,'Segoe UI','DejaVu Sans',sans-serif;color:#1b1f24;background:#fff;\
max-width:1080px;margin:0 auto;padding:20px 16px 40px;overflow-wrap:anywhere}
h1{font-size:22px;line-height:1.25;margin:0 0 2px}
h2{font-size:16px;margin:28px 0 8px;border-bottom:1px solid #d8dee4;padding-bottom:4px}
h3{font-size:14px;margin:16px 0 4px}
p,ul{margin:6px 0}ul{padding-left:20px}
a{color:#0550ae}
small,.sub{color:#57606a}
small{font-size:12px}
code{font:12px/1.4 ui-monospace,'DejaVu Sans Mono',monospace;background:#f3f4f6;padding:1px 4px;\
border-radius:3px}
.verdict{border:1px solid #d8dee4;border-left:8px solid #57606a;padding:12px 16px;margin:14px 0}
.verdict p{margin:0 0 4px}.verdict .head{font-size:1.3em;line-height:1.3;font-weight:600}
.verdict .trust{color:#424a53;font-size:.93em;margin-top:8px}
.decided{border-left-color:#116329;background:#f0faf2}
.impossible{border-left-color:#a40e26;background:#fff5f5}
.undetermined{border-left-color:#9a6700;background:#fffaeb}
.measuring{border-left-color:#0550ae;background:#f3f8ff}
.alert h2{margin-top:0}
.alert{border:2px solid #a40e26;padding:10px 16px;margin:14px 0}
.five{display:flex;flex-wrap:wrap;gap:10px}
.five>div{flex:1 1 135px;border:1px solid #d8dee4;border-radius:6px;padding:8px 12px}
.five b{display:block;font-size:21px;line-height:1.3;white-space:nowrap}
.five span{color:#57606a;font-size:12px;display:block;line-height:1.35}
table{border-collapse:collapse;width:100%}
th{font-weight:600;text-align:left;vertical-align:bottom;color:#57606a;font-size:12px;line-height:1.3;\
border-bottom:1px solid #8c959f;padding:4px 8px}
td{padding:5px 8px;border-bottom:1px solid #eaeef2;vertical-align:top;font-variant-numeric:tabular-nums}
.n{text-align:right}
.k{white-space:nowrap}
th,td.n{overflow-wrap:normal}
.two{display:flex;gap:28px;align-items:flex-start}.two>div{flex:1 1 0;min-width:0}
.gridbox{display:flex;gap:28px;align-items:flex-start}.gridbox table{flex:1 1 auto;width:auto}
.gridbox.below{display:block}
.below .legend{columns:2;margin-top:10px}
.legend{flex:0 0 320px;list-style:none;padding:0;margin:4px 0;font-size:13px}
.legend li{display:flex;gap:8px;align-items:center;margin:0 0 5px;break-inside:avoid}
.grid td{padding:2px 14px 2px 0;border:0;vertical-align:middle}
.grid th{padding-left:0}
.grid tbody th{vertical-align:top;padding:5px 14px 0 0;border:0;color:inherit;font-size:14px}
.cells span,.legend span{display:inline-block;min-width:66px;padding:2px 5px;margin:1px 0;text-align:center;\
font-size:12px;line-height:18px;border:1px solid #8c959f;background:#fff;font-variant-numeric:tabular-nums}
.legend span{flex:0 0 34px;min-width:34px}
sup{font-size:9px;line-height:0;padding-left:1px}
.cells .m,.legend .m{background:#cfe3fa;border-color:#0550ae;font-weight:600}
.cells .x,.legend .x{background:#a40e26;border-color:#a40e26;color:#fff;font-weight:600}
.cells .q,.legend .q{background:#fff8c5;border:1px dashed #1b1f24;font-weight:600}
.cells .f,.legend .f{border:1px dashed #a40e26;color:#a40e26;font-weight:600}
.cells .n,.legend .n{border:2px solid #1b1f24;padding:1px 4px;font-weight:600}
.cells .s,.legend .s{border-color:#d0d7de;color:#424a53;\
background:repeating-linear-gradient(45deg,#fff 0 5px,#dfe4ea 5px 7px)}
.cells .o,.legend .o{border-color:#d0d7de}
.cells .r,.legend .r{outline:2px solid #1b1f24;outline-offset:-4px}
.grid a{color:inherit;text-decoration:none}.grid a:hover{text-decoration:underline}
.meter{display:inline-block;width:160px;height:10px;border:1px solid #57606a;vertical-align:middle}
.meter span{display:block;height:100%;background:#0550ae}
dl{display:grid;grid-template-columns:170px 1fr;gap:4px 12px;margin:8px 0}dt{color:#57606a}dd{margin:0}
@media screen and (max-width:860px){.two,.gridbox{display:block}.legend{columns:2}
table{display:block;overflow-x:auto}th,td{padding-left:4px;padding-right:4px}td{font-size:13px}}
@media screen and (max-width:760px){body{padding:12px 8px}th,td{padding:4px 3px;font-size:12px}\
th{font-size:11px}.five>div{flex-basis:170px}\
.k{white-space:normal}.legend,.below .legend{columns:1}\
dl{display:block}dd{margin-bottom:6px}}
@media print{body{padding:0;font-size:12px}.two,.gridbox{display:block}.legend{columns:2}
h2{break-after:avoid}tr,svg,.verdict,.five,.alert{break-inside:avoid}a{color:inherit}
.five>div{flex:1 1 0;padding:6px 8px}.five b{font-size:17px}}
"""
