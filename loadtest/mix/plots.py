"""Lines over time as SVG, to stand in a page: no script, nothing to load, colours from the page's style."""

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10

from loadtest.mix.series import Series

WIDTH, HEIGHT = 560, 220
LEFT, RIGHT, TOP, BOTTOM = 58, 10, 12, 28


def plot(title: str, unit: str, series: Sequence[Series], bound: float | None = None) -> str:
    """A figure with a caption. ``bound`` is a line across, such as an objective."""
    values = [value for one in series for _, value in one.points]
    times = [time for one in series for time, _ in one.points]
    if not values:
        return f"<figure><figcaption>{escape(title)}</figcaption><p>nothing was measured</p></figure>"
    highest = max(values)
    if bound is not None and bound < 2 * highest:
        highest = max(highest, bound)
    step = _step(highest or 1.0)
    top, last = step * max(1, ceil((highest or 1.0) / step)), max(1.0, max(times))

    def x(time: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * time / last

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">']
    for number in range(round(top / step) + 1):
        level = number * step
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(level):.1f}" y2="{y(level):.1f}"/>')
        parts.append(f'<text class="left" x="{LEFT - 6}" y="{y(level) + 4:.1f}">{level:g}</text>')
    seconds = _step(last)
    for number in range(floor(last / seconds) + 1):
        parts.append(
            f'<text class="below" x="{x(number * seconds):.1f}" y="{HEIGHT - 10}">{number * seconds:g} s</text>'
        )
    if bound is not None and bound <= top:
        parts.append(
            f'<line class="bound" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(bound):.1f}" y2="{y(bound):.1f}">'
            f"<title>objective: {bound:g} {escape(unit)}</title></line>"
        )
    for index, one in enumerate(series):
        corners = " ".join(f"{x(time):.1f},{y(value):.1f}" for time, value in one.points)
        parts.append(f'<polyline class="line c{index}" points="{corners}"/>')
        parts += [
            f'<circle class="dot c{index}" cx="{x(time):.1f}" cy="{y(value):.1f}" r="2">'
            f"<title>{escape(one.label)} at {time:g} s: {value:.4g} {escape(unit)}</title></circle>"
            for time, value in one.points
        ]
    legend = " ".join(f'<span class="key c{index}">{escape(one.label)}</span>' for index, one in enumerate(series))
    caption = f"<figcaption>{escape(title)} <small>{escape(unit)}</small> {legend}</figcaption>"
    return f"<figure>{caption}{''.join(parts)}</svg></figure>"


def _step(highest: float) -> float:
    """A round number of which four to eight make the height."""
    power: float = 10.0 ** floor(log10(highest / 5))
    return next(power * factor for factor in (1, 2, 5, 10) if highest / (power * factor) <= 6)
