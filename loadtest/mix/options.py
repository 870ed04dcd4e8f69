"""Flags of the load test beside locust's own. Each may also be a ``LOCUST_*`` variable or a line of a config file."""

import argparse
import json
from collections.abc import Callable
from typing import Any

from loadtest.dataset import Lengths, Sizes
from loadtest.mix.settings import Settings
from loadtest.mix.thresholds import THRESHOLDS

DEFAULTS = Settings()
SIZES = Sizes()


def number(least: float, *, is_whole: bool = False, is_open: bool = False) -> Callable[[str], Any]:
    """A type for argparse: a finite number of at least ``least``, or above it (``is_open``)."""

    def parse(text: str) -> float:
        try:
            value = int(text) if is_whole else float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no {'whole ' if is_whole else ''}number") from None
        if not least <= value < float("inf") or (is_open and value == least):
            raise argparse.ArgumentTypeError(f"must be {'above' if is_open else 'at least'} {least:g}, is {text}")
        return value

    return parse


def json_object(text: str) -> str:
    """A type for argparse, which leaves it as it is: values travel to locust's workers and its web page."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object")
    return text


def keys(text: str | None) -> tuple[str, ...]:
    """What stands between commas."""
    return tuple(key for part in (text or "").split(",") if (key := part.strip()))


def add_options(parser: Any) -> None:
    """To locust's parser, whose groups take ``env_var`` beside what argparse knows."""
    server = _Group(parser, "The server, and who asks it")
    server.add("--model", help="name of the model; default: what /v1/models lists first")
    server.add(
        "--api-key",
        metavar="KEY[,KEY...]",
        is_secret=True,
        help="the server's key; users take turns at several, as tenants do",
    )
    server.add(
        "--flood-api-key", metavar="KEY", is_secret=True, help="of the tenant that floods; default: as the others"
    )
    server.add(
        "--body",
        type=json_object,
        default="{}",
        metavar="JSON",
        help='goes into every request, e.g. \'{"temperature": 0, "ignore_eos": true}\'',
    )
    server.add("--timeout", type=number(0, is_open=True), default=DEFAULTS.timeout, metavar="S", help="for an answer")
    server.add(
        "--longest-retry",
        type=number(0),
        default=DEFAULTS.longest_retry,
        metavar="S",
        help="who is told by a 429 to come again later than this does not (default: %(default)s)",
    )

    load = _Group(parser, "What users do")
    load.add(
        "--rate",
        type=number(0, is_open=True),
        metavar="R",
        help="open loop: R arrivals a second (Poisson) that wait for no answer, shared by all --users. An arrival is a "
        "conversation, a question or a burst. Default: closed loop, each user comes again after an answer",
    )
    load.add(
        "--think-time",
        type=number(0),
        default=DEFAULTS.think_time,
        metavar="S",
        help="median, between turns, and in a closed loop between visits (default: %(default)s)",
    )
    load.add("--choices", type=number(2, is_whole=True), default=DEFAULTS.num_choices, help="where n > 1 is asked for")
    load.add("--flood-burst", type=number(1, is_whole=True), default=DEFAULTS.flood_burst, help="requests at once")
    load.add(
        "--patience",
        type=number(0, is_open=True),
        default=DEFAULTS.patience,
        metavar="S",
        help="median, after which half of the impatient hang up; the others do while they read (default: %(default)s)",
    )
    load.add("--temperature", type=number(0), default=DEFAULTS.temperature, help="(default: %(default)s)")

    text = _Group(parser, "What they say")
    text.add(
        "--seed",
        type=int,
        default=DEFAULTS.seed,
        help="the same seed, the same words, which a server's cache may know (default: %(default)s)",
    )
    text.add("--dataset", metavar="FILE", help="conversations in ShareGPT's JSON format instead of made-up ones")
    whole = number(1, is_whole=True)
    text.add("--prompt-tokens", type=whole, default=round(SIZES.prompt.median), help="median (default: %(default)s)")
    text.add("--output-tokens", type=whole, default=round(SIZES.output.median), help="median (default: %(default)s)")
    text.add("--document-tokens", type=whole, default=SIZES.document_tokens, help="(default: %(default)s)")
    text.add(
        "--system-tokens", type=whole, default=SIZES.system_tokens, help="of shared prompts (default: %(default)s)"
    )
    text.add("--turns", type=whole, default=SIZES.most_turns, help="at most, of a conversation (default: %(default)s)")

    slo = _Group(parser, "Objectives and thresholds: a broken threshold ends the process with 1")
    slo.add(
        "--slo-ttft-ms",
        type=number(0),
        default=DEFAULTS.slo_ttft_ms,
        help="goodput counts answers with a TTFT of at most this (default: %(default)s)",
    )
    slo.add(
        "--slo-tpot-ms",
        type=number(0),
        default=DEFAULTS.slo_tpot_ms,
        help="and a time per token of at most this (default: %(default)s)",
    )
    for threshold in THRESHOLDS:
        bound = "at most" if threshold.flag.startswith("--max") else "at least"
        unit = f", {threshold.unit}" if threshold.unit else ""
        slo.add(threshold.flag, type=number(0), metavar="X", help=f"{threshold.about}: {bound} this{unit}")

    client = _Group(parser, "The client and its report")
    client.add("--report", metavar="FOLDER", help="writes report.html, requests.csv and summary.json there")
    client.add(
        "--max-client-lag-ms",
        type=number(0),
        default=DEFAULTS.max_client_lag_ms,
        help="beyond this lateness of its own loop (p99) the client is the bottleneck (default: %(default)s)",
    )
    client.add(
        "--max-client-cpu",
        type=number(0),
        default=DEFAULTS.max_client_cpu,
        help="beyond this share of a core, too (default: %(default)s)",
    )


class _Group:
    """Locust's parser shows in its web page what has the attributes that its own ``add_argument`` sets; groups of
    argparse set none."""

    def __init__(self, parser: Any, title: str) -> None:
        self._group = parser.add_argument_group(title)

    def add(self, flag: str, *, is_secret: bool = False, **more: Any) -> None:
        variable = "LOCUST_" + flag.removeprefix("--").replace("-", "_").upper()
        action = self._group.add_argument(flag, env_var=variable, **more)
        action.include_in_web_ui, action.is_secret = True, is_secret
        action.is_required = action.is_multiple = False


def number_or_none(value: float | str | None) -> float | None:
    """Where nothing was given, locust's web page gives a text, which may be empty."""
    return None if value in (None, "") else float(value)


def bounds(options: argparse.Namespace) -> dict[str, float | None]:
    """Of thresholds, by their names."""
    return {one.name: number_or_none(getattr(options, one.name)) for one in THRESHOLDS}


def settings(options: argparse.Namespace) -> Settings:
    """Of a parsed command line."""
    return Settings(
        seed=options.seed,
        model=options.model or None,
        api_keys=keys(options.api_key),
        flood_key=options.flood_api_key or None,
        rate=number_or_none(options.rate),
        think_time=options.think_time,
        timeout=options.timeout,
        longest_retry=options.longest_retry,
        num_choices=options.choices,
        flood_burst=options.flood_burst,
        patience=options.patience,
        temperature=options.temperature,
        body=json.loads(options.body),
        slo_ttft_ms=options.slo_ttft_ms,
        slo_tpot_ms=options.slo_tpot_ms,
        max_client_lag_ms=options.max_client_lag_ms,
        max_client_cpu=options.max_client_cpu,
    )


def sizes(options: argparse.Namespace) -> Sizes:
    """The same of what is said: medians from the command line, the spread around them as it is."""
    return Sizes(
        prompt=_around(SIZES.prompt, options.prompt_tokens),
        output=_around(SIZES.output, options.output_tokens),
        document_tokens=options.document_tokens,
        system_tokens=options.system_tokens,
        most_turns=options.turns,
    )


def _around(lengths: Lengths, median: int) -> Lengths:
    scale = median / lengths.median
    return Lengths(median, lengths.sigma, max(1, round(lengths.least * scale)), max(1, round(lengths.most * scale)))
