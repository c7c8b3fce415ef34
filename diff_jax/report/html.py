# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The few HTML pieces that the page is made of, its style and its script."""

import html
from collections.abc import Sequence

STYLE = """
:root { --ink: #1f2328; --muted: #5c6670; --line: #d9dde1; --soft: #f5f6f8; }
* { box-sizing: border-box; }
body { margin: 0; background: #fff; color: var(--ink); font: 16px/1.55
  system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial,
  sans-serif; }
main { max-width: 1008px; margin: 0 auto; padding: 40px 24px 80px; }
header p, .muted { color: var(--muted); }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 4px; }
h2 { font-size: 24px; margin: 56px 0 12px; padding-top: 20px;
  border-top: 2px solid var(--ink); }
h3 { font-size: 17px; margin: 40px 0 6px; }
p { margin: 6px 0; max-width: 76ch; }
.lead { text-wrap: pretty; font-size: 21px; line-height: 1.45; max-width: 62ch; margin: 10px 0; }
.note { border-left: 3px solid #E6A100; padding: 2px 0 2px 12px; }
ul.caveats { margin: 10px 0; padding-left: 20px; color: var(--muted);
  font-size: 14px; }
figure { margin: 14px 0 18px; }
figure svg { display: block; width: 100%; height: auto; }
svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto,
  "Helvetica Neue", Arial, sans-serif !important; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 8px 16px; }
figcaption { color: var(--muted); font-size: 14px; line-height: 1.5;
  text-align: left; }
figcaption { margin-top: 4px; max-width: 100ch; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: 4px 0 6px; font-size: 14.5px;
  font-variant-numeric: tabular-nums; }
th, td { padding: 4px 20px 4px 0; text-align: right; vertical-align: top;
  border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-weight: 600; white-space: normal; max-width: 9.5em; border-bottom: 1px solid var(--ink);
  vertical-align: bottom; }
th:has(.chip) { white-space: nowrap; max-width: none; }
th:first-child, td:first-child { text-align: left; max-width: none; }
th:last-child, td:last-child { padding-right: 0; }
.left th, .left td { text-align: left; }
.left td { white-space: normal; overflow-wrap: break-word; }
.left td:first-child { white-space: nowrap; }
nav a { margin-right: 20px; color: #0061A8; }
.chip { display: inline-block; width: 11px; height: 11px; border-radius: 2px;
  margin-right: 7px; }
code, pre { font: 13.5px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas,
  "DejaVu Sans Mono", monospace; }
pre { background: var(--soft); padding: 12px 14px; margin: 6px 0;
  white-space: pre-wrap; overflow-wrap: anywhere; border-radius: 4px; max-height: 480px; overflow-y: auto; }
.command { display: flex; gap: 10px; align-items: flex-start; }
.command pre { flex: 1; user-select: all; }
button { margin-top: 8px; font: inherit; font-size: 13px; padding: 4px 12px;
  border: 1px solid var(--line); border-radius: 4px; background: #fff;
  cursor: pointer; }
details { margin: 8px 0; } summary { cursor: pointer; color: var(--muted); }
footer { margin-top: 56px; padding-top: 8px; border-top: 2px solid var(--ink);
  font-size: 14px; }
footer table { font-size: 13px; } footer h2 { border: 0; margin-top: 8px;
  padding: 0; font-size: 20px; }
@media (max-width: 700px) { .pair { grid-template-columns: 1fr; } }
@media print { button { display: none; } main { padding: 0; } }
"""

SCRIPT = """
for (const button of document.querySelectorAll("button[data-copy]")) {
  button.onclick = () => navigator.clipboard.writeText(
    button.previousElementSibling.textContent).then(() => {
      button.textContent = "copied";
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
}
"""


class Raw(str):
  """A string that is HTML already."""


def text(value: object) -> str:
  """Returns a cell or a sentence, escaped unless it is `Raw`."""
  return value if isinstance(value, Raw) else html.escape(str(value))


def chip(name: str, colour: str) -> Raw:
  """Returns a name behind a square of its arm's colour."""
  return Raw(
      f'<span class="chip" style="background:{colour}"></span>'
      f"{html.escape(name)}"
  )


def table(
    header: Sequence[object],
    rows: Sequence[Sequence[object]],
    caption: str = "",
    kind: str = "",
) -> str:
  """Returns a table; the first column is left-aligned, numbers right."""
  head = "".join(f"<th>{text(cell)}</th>" for cell in header)
  body = "\n".join(
      "<tr>" + "".join(f"<td>{text(cell)}</td>" for cell in row) + "</tr>"
      for row in rows
  )
  words = f"<figcaption>{text(caption)}</figcaption>" if caption else ""
  return (
      f'<figure class="scroll"><table class="{kind}"><thead><tr>{head}</tr>'
      f"</thead><tbody>\n{body}\n</tbody></table>{words}</figure>"
  )


def figure(svgs: Sequence[str], caption: str) -> str:
  """Returns one figure; several drawings stand in two columns."""
  drawn = "\n".join(svgs)
  if len(svgs) > 1:
    drawn = f'<div class="pair">{drawn}</div>'
  return f"<figure>{drawn}<figcaption>{text(caption)}</figcaption></figure>"


def details(title: str, body: str) -> str:
  """Returns something that is folded away under its title."""
  return f"<details><summary>{text(title)}</summary>{body}</details>"


def section(title: str, *parts: str) -> str:
  """Returns a section; "" when it has nothing to show."""
  shown = [part for part in parts if part]
  if not shown:
    return ""
  return "\n".join([f"<section><h3>{text(title)}</h3>", *shown, "</section>"])


def paragraph(words: object, kind: str = "") -> str:
  return f'<p class="{kind}">{text(words)}</p>' if words else ""


def command(words: str, purpose: str) -> str:
  """Returns a command that can be copied, under what it is for."""
  return (
      f"{paragraph(purpose)}"
      f'<div class="command"><pre>{html.escape(words)}</pre>'
      '<button data-copy type="button">copy</button></div>'
  )


def page(title: str, body: str, refresh_s: float | None = None) -> str:
  """Returns the whole document: nothing in it is loaded from elsewhere."""
  refresh = ""
  if refresh_s is not None:
    refresh = f'\n<meta http-equiv="refresh" content="{refresh_s:g}">'
  return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">{refresh}
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
{body}
</main>
<script>{SCRIPT}</script>
</body>
</html>
"""
