# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The sections of one act; each returns HTML, or "" without its data."""

from diff_jax.report import (
    drawing,
    figures,
    html,
    maps,
    sentences,
    tables,
    text,
)
from diff_jax.report import result as result_lib
from diff_jax.report import runs as runs_lib


def act(result: result_lib.Result) -> str:
  """Returns an act in the order of a result."""
  return "\n".join(
      part
      for part in (
          _opening(result),
          _curves(result),
          _shares(result.act),
          _row(result.act),
          _lengths(result.act),
          _lambdas(result.act),
          _cost(result),
          _baselines(result),
          _samples(result.act),
          _settings(result.act),
      )
      if part
  )


def anchor(act_: runs_lib.Act) -> str:
  """Returns the id of an act's heading."""
  return "act-" + "".join(c if c.isalnum() else "-" for c in act_.experiment)


def _opening(result):
  act_, settings = result.act, result.act.settings
  caveats = "".join(
      f"<li>{html.text(words)}</li>" for words in sentences.caveats(result)
  )
  parts = [
      f'<h2 id="{anchor(act_)}">{html.text(text.title(act_.experiment))}</h2>',
      html.paragraph(sentences.lead(result), "lead"),
      html.paragraph(sentences.speed(result)),
      html.paragraph(settings.note, "note"),
      html.paragraph(_facts(act_), "muted"),
      f'<ul class="caveats">{caveats}</ul>' if caveats else "",
  ]
  drawn = figures.headline(result)
  if drawn:
    parts.append(html.figure([drawn], _headline_caption(result)))
  parts += [tables.arms(result), tables.differences(result)]
  return "\n".join(part for part in parts if part)


def _facts(act_):
  """One line: how many runs of what, on which data."""
  traces = [trace for arm in act_.arms for trace in arm.traces.values()]
  words = [text.counted(len(act_.arms), "arm")]
  words.append(text.counted(len(traces), "training run"))
  sizes = [run.info.get("parameters") for run in act_.runs]
  sizes = sorted({size for size in sizes if size})
  if sizes:
    shown = " to ".join(
        f"{size:,}" for size in (sizes[0], sizes[-1])[: len(sizes)]
    )
    words.append(f"{shown} parameters")
  steps = act_.runs[0].config.get("num_steps")
  words += [f"{steps:,} steps"] if steps else []
  data = act_.runs[0].config.get("data") or {}
  words += [
      f"{'data' if key == 'name' else text.phrase(key)} {value}"
      for key, value in sorted(data.items(), key=lambda item: item[0] != "name")
      if isinstance(value, int | str) and value != ""
  ]
  line = ", ".join(words)
  return f"{line[0].upper()}{line[1:]}."


def _headline_caption(result):
  metric = text.phrase(result.act.settings.metric)
  words = f"{metric}, {sentences.window(result)}; a dot a seed, a bar the mean."
  if not any(delta.paired or delta.welch for delta in result.differences):
    return words
  return (
      f"Left: {words} Right: differences of means with 95 % t intervals over"
      " seeds, paired by seed (solid) and unpaired (dotted)."
  )


def _curves(result):
  act_ = result.act
  wanted = dict.fromkeys(
      (act_.settings.metric, "train/loss", "loss/bits_per_byte", "loss/loss")
  )
  metrics = [metric for metric in wanted if metric in act_.names()][:2]
  asked = act_.settings.first_step, act_.settings.last_step
  window = asked if result.complete and None not in asked else None
  drawn = figures.curves(act_, metrics, act_.baselines, window)
  if not drawn:
    return ""
  words = ["One thin line a seed, as logged."]
  rows = max(
      len(trace.series(m)[0])
      for m in metrics
      for arm in act_.arms
      for trace in arm.traces.values()
  )
  if rows > drawing.MAX_POINTS:
    words = ["One thin line a seed, averaged in blocks of logged steps."]
  if window and act_.settings.metric in metrics:
    words.append("Shaded: the steps of the headline.")
  if any(result_lib.levels(m, act_.baselines) for m in metrics):
    words.append("Dashed: baselines.")
  return html.section("Learning curves", html.figure([drawn], " ".join(words)))


def _shares(act_):
  drawn = figures.shares(act_)
  table = maps.statistics(act_)
  if not drawn:
    return html.section("Where attention goes", table)
  answer = "on the token that holds the answer, "
  if "attention/share_answer" not in act_.names():
    answer = ""
  caption = (
      "The paper's Figure 1 from these weights, through training: the share of"
      f" attention {answer}on the first token, on the query itself and on"
      " everything else. Shares are of |A| / Σ|A|, A the map that multiplies"
      " the values (A₁ − λA₂ for two maps), averaged over queries, heads and"
      " layers; one thin line a seed."
  )
  return html.section(
      "Where attention goes", html.figure([drawn], caption), table
  )


def _row(act_):
  found = maps.rows(act_)
  if not found:
    return ""
  where = sorted({(row.seed, row.step) for row in found.values()})
  words = text.listed([f"seed {s}, step {step:,}" for s, step in where])
  places = {
      (row.seed, row.step, row.query, row.answer) for row in found.values()
  }
  caption = (
      f"{'The same' if len(places) == 1 < len(found) else 'One'} query's row of attention in"
      f" one head of the last layer ({words}). The vertical scale is one for all, and square-root, so that"
      " small weights can be seen."
  )
  if any(row.answer is not None for row in found.values()):
    caption += (
        " The triangle marks the token that holds the answer; “answer” is the"
        " weight on it."
    )
  if any((bar < 0).any() for row in found.values() for _, bar in row.bars()):
    caption += " Grey bars are negative weights."
  lambdas = {arm: row.lambda_ for arm, row in found.items()}
  if any(value is not None for value in lambdas.values()):
    caption += (
        " What both maps see cancels in A₁ − λA₂ if λ is positive; the row sums"
        " to 1 − λ."
    )
  added = [arm for arm, value in lambdas.items() if value and value < 0]
  if added:
    caption += (
        f" Here λ is negative in {text.listed(added)}: the second map is added,"
        " not subtracted."
    )
  return html.section(
      "One query, map by map", html.figure(maps.blocks(act_, found), caption)
  )


def _lengths(act_):
  found = result_lib.length_accuracy(act_)
  if not found:
    return ""
  drawn = figures.lengths(act_, act_.baselines)
  several = any(len(values) > 1 for values, _ in found.values())
  alone = any(len(values) == 1 for values, _ in found.values())
  words = ["Accuracy of the last evaluation; a dot a seed."]
  if several:
    words.append("Bars: 95 % t interval of the mean over seeds.")
  if alone:
    words.append(
        "Where there is one seed, Wilson's 95 % interval over its answers, as"
        " if they were independent; it says nothing about other seeds."
    )
  return html.section(
      "Longer contexts than in training",
      html.figure([drawn], " ".join(words)),
      tables.lengths(act_),
  )


def _lambdas(act_):
  drawn = figures.lambdas(act_)
  if not drawn:
    return ""
  caption = (
      "λ, the weight of the map that is subtracted (added, where λ is"
      " negative); one thin line a seed and layer."
  )
  return html.section("λ", html.figure([drawn], caption))


def _cost(result):
  return html.section("Cost", tables.cost(result))


def _baselines(result):
  corpus = next((r.info["corpus"] for r in result.act.runs if _corpus(r)), {})
  facts = [
      f"{text.phrase(k)} {v:,}"
      if isinstance(v, int)
      else f"{text.phrase(k)} {v}"
      for k, v in corpus.items()
      if isinstance(v, int | float | str)
  ]
  words = f"Corpus: {', '.join(facts)}." if facts else ""
  return html.section(
      "Baselines that calibrate",
      tables.calibration(result),
      html.paragraph(words, "muted"),
  )


def _corpus(run):
  return isinstance(run.info.get("corpus"), dict)


def _samples(act_):
  parts = []
  for arm in act_.arms:
    for seed, trace in arm.traces.items():
      last = trace.last("sample/text")
      if last:
        words = f"{arm.name}, seed {seed}, step {last[0]:,}:"
        parts.append(html.paragraph(words, "muted"))
        parts.append(f"<pre>{html.text(last[1])}</pre>")
        break
  return html.section("A sample of its text", *parts)


def _settings(act_):
  """What the arms were trained with, the differences first."""
  several = html.section("What differs between the arms", tables.settings(act_))
  flat = runs_lib.flat_settings(act_.runs[0])
  rows = [[key, tables.shown(value)] for key, value in flat.items()]
  first = f"Every setting of {act_.runs[0].folder}"
  table = html.table(["setting", "value"], rows, kind="left")
  return several + html.details(first, table)
